//! Statistics of an open database, for people ([`Stats`] displays as a table) and for programs (it serializes).

mod prometheus;

use crate::latency::Latency;
use psync::Counters;
use serde::Serialize;

/// A picture of an open database. Counters start at 0 when it is opened; sizes are current.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// for number in 0..1000u32 {
///     ships.insert(number.to_be_bytes(), [7; 100])?;
/// }
/// db.flush()?;
/// let writes = db.stats().writes;
/// let written = writes.log_bytes + writes.data_bytes + writes.manifest_bytes;
/// println!("write amplification {:.2}", written as f64 / writes.change_bytes_flushed as f64);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// One entry per keyspace, in order of creation.
    pub keyspaces: Vec<KeyspaceStats>,
    /// Memory use, in bytes.
    pub memory: MemoryStats,
    /// Disk use, in bytes.
    pub space: SpaceStats,
    /// Reads of nodes.
    pub reads: ReadStats,
    /// Writing and flushing.
    pub writes: WriteStats,
    /// All traffic to the device, as counted by the device layer.
    pub device: Counters,
    /// How long operations took, one entry per kind, if [`Builder::latencies`](crate::Builder::latencies) asked for it.
    pub latencies: Option<Vec<Latency>>,
}

/// Statistics of one keyspace.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// ships.ingest((0..1000u32).map(|number| (number.to_be_bytes(), "afloat")))?;
/// let of_ships: &sapwood::KeyspaceStats = &db.stats().keyspaces[0];
/// assert_eq!((&of_ships.name[..], of_ships.records), ("ships", 1000));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeyspaceStats {
    /// The keyspace's name.
    pub name: String,
    /// Records in the leaves. Changes in operation queues and log areas are not counted. An estimate after a range was removed
    /// whose leaves had not to be read, until no record is left.
    pub records: u64,
    /// Levels of the tree, including the leaves.
    pub levels: u8,
    /// Whether its records may expire. Expired ones count among the records until they are removed.
    pub may_expire: bool,
}

/// Memory use in bytes.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// let memory: sapwood::MemoryStats = db.stats().memory;
/// assert!(memory.queues + memory.cache + memory.mapping_table <= memory.budget);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MemoryStats {
    /// The memory budget, as set by [`Builder::memory`](crate::Builder::memory).
    pub budget: u64,
    /// The active and the frozen operation queue, and queues that are already in the trees but still held by a
    /// snapshot or reader.
    pub queues: u64,
    /// The size at which the active queue is full: less than a sixth of the budget where tables or queues that
    /// are still held leave less, or where records that are read again need the memory.
    pub queue_max: u64,
    /// Memory of freed queues, kept for a quarter of a second for the next queue.
    pub spare: u64,
    /// Cached nodes.
    pub cache: u64,
    /// Reserved for cached records.
    pub records: u64,
    /// The mapping table.
    pub mapping_table: u64,
    /// Names and options of the keyspaces, some 300 bytes each.
    pub keyspaces: u64,
    /// Log areas: their runs, fences and maplets.
    pub log_areas: u64,
    /// Write buffers, while something is being written, and idle read buffers.
    pub buffers: u64,
}

/// Disk use in bytes.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// ships.ingest((0..1000u32).map(|number| (number.to_be_bytes(), "afloat")))?;
/// let space: sapwood::SpaceStats = db.stats().space;
/// println!("{} of {} bytes are live", space.live, space.used);
/// assert!(space.live > 0 && space.live <= space.used);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct SpaceStats {
    /// Live data: nodes and log pieces that the trees need.
    pub live: u64,
    /// The part of `live` in log pieces: changes that are not yet in the leaves.
    pub logged: u64,
    /// Log pieces (count). A log piece is a node of about 4 KiB. A get reads one per log area; a scan reads
    /// those that overlap its range.
    pub log_pieces: u64,
    /// Runs of log pieces (count). A run is what one flush appended to one block. A scan finds what it
    /// reads of a run in one place.
    pub log_runs: u64,
    /// Changes in the log pieces (count).
    pub logged_changes: u64,
    /// Segments in use, including dead nodes in them.
    pub used: u64,
    /// `used / live`.
    pub amplification: f64,
    /// Nodes, including log pieces (count).
    pub nodes: u64,
    /// Segments (count).
    pub segments: u64,
    /// The manifest.
    pub manifest: u64,
    /// The log files. For the newest one, this includes the zeros written ahead of durable commits (at most 1
    /// MiB).
    pub log: u64,
    /// The part of `log` that is kept for [`Database::changes`](crate::Database::changes) only, each file with at least 4 KiB.
    pub kept_log: u64,
    /// Set aside so that a full disk can be emptied: for removals, flushes, compactions and opening.
    pub reserve: u64,
}

/// Node reads since the database was opened.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// ships.insert("fram", "1892")?;
/// db.flush()?;
/// ships.get("fram")?;
/// let reads: sapwood::ReadStats = db.stats().reads;
/// println!("{} of {} nodes were cached", reads.cache_hits, reads.cache_hits + reads.cache_misses);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReadStats {
    /// Records found in the cache.
    pub record_hits: u64,
    /// Nodes found in the cache.
    pub cache_hits: u64,
    /// Nodes read from the device.
    pub cache_misses: u64,
    /// Parallel reads (psync groups).
    pub psync_groups: u64,
    /// Requests in these groups.
    pub requests: u64,
    /// Bytes in these groups.
    pub bytes: u64,
    /// Nodes that a flush needed and that had been read ahead for it.
    pub ahead: u64,
    /// Log pieces that range scans read from the device.
    pub pieces_scanned: u64,
    /// Log pieces that range scans found in the cache. Both counts make cleansing of their blocks due.
    pub pieces_cached: u64,
}

/// Writes since the database was opened. In bytes, unless stated otherwise.
///
/// ```
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// # let ships = db.keyspace("ships")?;
/// ships.insert("fram", "1892")?;
/// db.flush()?;
/// let writes: sapwood::WriteStats = db.stats().writes;
/// assert_eq!(writes.changes_flushed, 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WriteStats {
    /// Changes that flushes applied to the trees (count).
    pub changes_flushed: u64,
    /// The part of `changes_flushed` that was appended to log areas while the previous flush was still
    /// cleansing (count).
    pub changes_ahead: u64,
    /// Keys and values of the flushed changes.
    pub change_bytes_flushed: u64,
    /// The log, including the zeros written ahead of durable commits.
    pub log_bytes: u64,
    /// Syncs of the log (count).
    pub log_syncs: u64,
    /// The data file, including the collector's copies.
    pub data_bytes: u64,
    /// The part of `data_bytes` copied by the collector.
    pub collected_bytes: u64,
    /// The manifest.
    pub manifest_bytes: u64,
    /// Flushes (count).
    pub flushes: u64,
    /// Portions in which the flushes were published (count).
    pub portions: u64,
    /// Blocks whose log areas flushes appended to (count).
    pub blocks_appended: u64,
    /// Blocks whose log areas flushes cleansed, that is, moved into the leaves (count).
    pub blocks_cleansed: u64,
    /// Blocks cleansed because range scans had charged them its price (count).
    pub blocks_cleansed_for_scans: u64,
    /// Blocks whose runs were merged for the same reason (count).
    pub blocks_merged_for_scans: u64,
    /// The price of both, in bytes that a device could have moved in that time. This is a price, not traffic:
    /// it is to read and write leaves and log pieces, whether or not they were cached, plus 10 KiB for each
    /// run's request.
    pub price_for_scans: u64,
    /// Changes in the operation queues (count).
    pub changes_queued: u64,
    /// Time that writers were slowed down, in microseconds, summed over all writers.
    pub delayed_us: u64,
    /// Time that writers were stopped, in microseconds, summed over all writers.
    pub stopped_us: u64,
}

impl Stats {
    /// The same as metrics in the text format of Prometheus (0.0.4), which OpenMetrics scrapers read too: to be returned by a
    /// program's own `/metrics`, or written into a file for the node exporter's textfile collector. All names begin with `sapwood_`;
    /// units are seconds and bytes; what is counted since opening ends with `_total`. [`Stats::latencies`] are the histogram
    /// `sapwood_operation_duration_seconds`.
    ///
    /// ```
    /// # fn main() -> sapwood::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a temporary directory");
    /// # let db = sapwood::Database::open(dir.path().join("ships.db"))?;
    /// let text = db.stats().to_prometheus();
    /// assert!(text.contains("\n# TYPE sapwood_flushes_total counter\nsapwood_flushes_total 0\n"));
    /// # Ok(()) }
    /// ```
    pub fn to_prometheus(&self) -> String {
        prometheus::text(self)
    }
}

/// A byte count, formatted for people.
struct Size(u64);

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < units.len() {
            value /= 1024.0;
            unit += 1;
        }
        let text = if unit == 0 { format!("{} B", self.0) } else { format!("{value:.1} {}", units[unit]) };
        f.pad(&text)
    }
}

impl std::fmt::Display for Stats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for keyspace in &self.keyspaces {
            writeln!(
                f,
                "keyspace {:<20} {:>12} records in a tree of {} level(s){}",
                keyspace.name,
                keyspace.records,
                keyspace.levels,
                if keyspace.may_expire { ", which may expire" } else { "" }
            )?;
        }
        writeln!(f, "waiting to be flushed {:>18} changes", self.writes.changes_queued)?;
        let (space, memory) = (&self.space, &self.memory);
        writeln!(
            f,
            "space    {} live in {} nodes, {} used in {} segments ({:.2} x), manifest {}, log {}, reserve {}",
            Size(space.live),
            space.nodes,
            Size(space.used),
            space.segments,
            space.amplification,
            Size(space.manifest),
            Size(space.log),
            Size(space.reserve)
        )?;
        writeln!(
            f,
            "memory   {} budget: queues {}, spare {}, cached nodes {}, record cache {}, mapping table {}, keyspaces {}, log areas {}, buffers {}",
            Size(memory.budget),
            Size(memory.queues),
            Size(memory.spare),
            Size(memory.cache),
            Size(memory.records),
            Size(memory.mapping_table),
            Size(memory.keyspaces),
            Size(memory.log_areas),
            Size(memory.buffers)
        )?;
        writeln!(
            f,
            "logged   {} changes in {} log pieces of {} runs, {}",
            space.logged_changes,
            space.log_pieces,
            space.log_runs,
            Size(space.logged)
        )?;
        if self.device.stalls > 0 {
            writeln!(
                f,
                "stalls   {} waits for requests that the kernel did not complete, the longest {:.1} s; {} sets cancelled",
                self.device.stalls,
                self.device.longest_stall_ms as f64 / 1000.0,
                self.device.timeouts
            )?;
        }
        let (reads, writes) = (&self.reads, &self.writes);
        writeln!(
            f,
            "reads    {} records and {} nodes from the cache, {} nodes from the device ({} ahead of a flush): {} requests in {} psync groups, {}",
            reads.record_hits,
            reads.cache_hits,
            reads.cache_misses,
            reads.ahead,
            reads.requests,
            reads.psync_groups,
            Size(reads.bytes)
        )?;
        for latency in self.latencies.iter().flatten().filter(|latency| latency.count() > 0) {
            write!(f, "latency  {:<17}", latency.name())?;
            for (name, part) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
                let us = latency.quantile(part).unwrap_or_default().as_nanos() as f64 / 1000.0;
                write!(f, " {name} {us:.1} us,")?;
            }
            let sampled = latency.sampled();
            let of = if sampled > 1 { format!(" timed, one in {sampled}") } else { String::new() };
            writeln!(f, " {}{of}", latency.count())?;
        }
        if (writes.log_bytes, writes.flushes) == (0, 0) {
            return write!(f, "writes   none since it was opened");
        }
        writeln!(
            f,
            "writes   log {} ({} syncs), data {} (collector {}), manifest {}",
            Size(writes.log_bytes),
            writes.log_syncs,
            Size(writes.data_bytes),
            Size(writes.collected_bytes),
            Size(writes.manifest_bytes)
        )?;
        write!(
            f,
            "flushes  {} in {} portions, {} changes of {}; writers slowed {:.1} s, stopped {:.1} s",
            writes.flushes,
            writes.portions,
            writes.changes_flushed,
            Size(writes.change_bytes_flushed),
            writes.delayed_us as f64 / 1e6,
            writes.stopped_us as f64 / 1e6
        )
    }
}
