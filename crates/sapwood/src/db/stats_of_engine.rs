//! What the parts of an open database count, as one [`Stats`].

use crate::db::engine::Engine;
use crate::operation::KeyspaceId;
use crate::reserve;
use crate::stats::{KeyspaceStats, MemoryStats, ReadStats, SpaceStats, Stats, WriteStats};
use crate::version::Version;
use crate::version::manifest;
use crate::version::manifest::Manifest;
use crate::wal;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The names of keyspaces of chunks, for people: those of the keyspaces whose values they are. None is that of another keyspace.
fn names_of_chunks(version: &Version) -> BTreeMap<KeyspaceId, String> {
    let with_chunks = || version.trees.iter().filter_map(|(_, tree)| Some((tree.chunks?, &tree.name)));
    if with_chunks().next().is_none() {
        return BTreeMap::new();
    }
    let taken: BTreeSet<&str> = version.trees.iter().map(|(_, tree)| &*tree.name).collect();
    let named = |(chunks, of)| {
        let mut name = format!("{of} (chunks)");
        while taken.contains(&*name) {
            name.push('*');
        }
        (chunks, name)
    };
    with_chunks().map(named).collect()
}

/// A picture of an open database.
pub(super) fn of(engine: &Engine) -> Stats {
    engine.memory.recount_old_queues();
    let state = engine.state.load_full();
    let version = &state.version;
    let get = |counter: &AtomicU64| counter.load(Relaxed);
    let (log_bytes, log_syncs) = engine.commits.log_counters();
    let manifest_bytes =
        engine.publisher.with_manifest(|manifest| manifest.map_or(0, Manifest::bytes_written));
    // Listed from the directory, so that a read-only database can report them too. If listing fails, they
    // count as empty.
    let files = engine.volume.list().unwrap_or_default();
    let bytes_of = |is_one: &dyn Fn(&str) -> bool| -> u64 {
        files.iter().filter(|entry| is_one(&entry.name)).map(|entry| entry.len).sum()
    };
    let pager = &engine.pager.counters;
    let reads = &engine.pager.reader.counters;
    let flushed = &engine.flush.counters;
    let (nodes_cached, records_cached) = engine.pager.cache.bytes();
    let (pieces_scanned, pieces_cached) = engine.pager.read_costs.pieces();
    let (live, used) = (version.live_bytes(), version.used_bytes());
    let logs = version.logs.totals();
    let of_chunks = names_of_chunks(version);
    Stats {
        keyspaces: version
            .trees
            .iter()
            .map(|(id, tree)| KeyspaceStats {
                name: of_chunks.get(&id).cloned().unwrap_or_else(|| tree.name.to_string()),
                records: tree.len,
                levels: if tree.root.is_some() { tree.height + 1 } else { 0 },
                may_expire: tree.ttl.is_some(),
            })
            .collect(),
        memory: MemoryStats {
            budget: engine.shares.memory,
            queues: (state.queues().map(|queue| queue.memory()).sum::<usize>() + engine.memory.old_queues())
                as u64,
            queue_max: engine.memory.queue_max(&state) as u64,
            spare: engine.memory.free_list.bytes() as u64,
            cache: nodes_cached,
            records: records_cached,
            mapping_table: version.table.memory() as u64,
            keyspaces: version.keyspaces_memory() as u64,
            log_areas: version.logs.memory() as u64,
            buffers: (engine.memory.write_buffers() + engine.pager.reader.buffers().idle_bytes()) as u64,
        },
        space: SpaceStats {
            live,
            logged: logs.bytes,
            log_pieces: logs.pieces,
            log_runs: logs.runs,
            logged_changes: logs.changes,
            used,
            amplification: if live == 0 { 1.0 } else { used as f64 / live as f64 },
            nodes: version.table.count(),
            segments: version.segments.count() as u64,
            manifest: bytes_of(&|name| manifest::number_of(name).is_some()),
            reserve: bytes_of(&|name| name == reserve::FILE),
            log: bytes_of(&|name| wal::generation_of(name).is_some()),
            kept_log: match engine.health.is_read_only() && version.kept_log_max() > 0 {
                // Whoever only reads keeps none, and sees what is kept.
                true => wal::kept_bytes(&files, |generation| generation < version.wal_low),
                false => engine.space.kept_log.bytes(),
            },
        },
        reads: ReadStats {
            record_hits: pager.total(|counters| &counters.record_hits),
            cache_hits: pager.total(|counters| &counters.hits),
            cache_misses: pager.total(|counters| &counters.misses),
            psync_groups: reads.total(|counters| &counters.sets),
            requests: reads.total(|counters| &counters.requests),
            bytes: reads.total(|counters| &counters.bytes),
            ahead: pager.total(|counters| &counters.ahead),
            pieces_scanned,
            pieces_cached,
        },
        writes: WriteStats {
            changes_flushed: get(&flushed.changes),
            changes_ahead: get(&flushed.changes_ahead),
            change_bytes_flushed: get(&flushed.change_bytes),
            log_bytes,
            log_syncs,
            data_bytes: engine.writer().bytes_written(),
            collected_bytes: get(&flushed.collected_bytes),
            manifest_bytes,
            flushes: get(&flushed.flushes),
            portions: get(&flushed.portions),
            blocks_appended: get(&flushed.blocks_appended),
            blocks_cleansed: get(&flushed.blocks_cleansed),
            blocks_cleansed_for_scans: get(&flushed.blocks_cleansed_for_scans),
            blocks_merged_for_scans: get(&flushed.blocks_merged_for_scans),
            price_for_scans: get(&flushed.price_for_scans),
            changes_queued: state.queues().map(|queue| queue.count()).sum(),
            delayed_us: engine.progress.throttle.slept_us(),
            stopped_us: get(&engine.progress.stopped_us),
        },
        device: engine.volume.counters(),
        latencies: engine.pager.latencies.all(),
    }
}
