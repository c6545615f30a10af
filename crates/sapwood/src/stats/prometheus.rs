//! Statistics in the text format of Prometheus, version 0.0.4.
//!
//! Invariants:
//! 1. Every number of [`Stats`] is a sample of its own, and each family has one HELP and one TYPE line before its samples.
//! 2. Names follow the conventions: base units (seconds, bytes) as suffix, `_total` behind counters and nothing else.

use crate::latency::Latency;
use crate::stats::Stats;
use std::fmt::{Display, Write};
use std::time::Duration;

/// Upper bounds of the buckets of a histogram, in nanoseconds: 1 us to 10 s, three for each power of ten.
const BOUNDS_NS: [u64; 22] = {
    let mut bounds = [0; 22];
    let (mut index, mut power) = (0, 1000);
    while index < bounds.len() {
        bounds[index] = power * [2, 5, 10][index % 3] / 2;
        if index % 3 == 2 {
            power *= 10;
        }
        index += 1;
    }
    bounds
};

/// The text of all statistics.
pub fn text(stats: &Stats) -> String {
    let mut text = Text::default();
    let Stats { keyspaces, memory, space, reads, writes, device, latencies } = stats;
    let of_keyspaces = |text: &mut Text, name, help, value: &dyn Fn(usize) -> u64| {
        text.family(name, "gauge", help);
        for (index, keyspace) in keyspaces.iter().enumerate() {
            text.sample(name, &[("keyspace", &keyspace.name)], value(index));
        }
    };
    let help = "Records in the leaves of a keyspace.";
    of_keyspaces(&mut text, "sapwood_keyspace_records", help, &|index| keyspaces[index].records);
    let help = "Levels of a keyspace's tree, with the leaves.";
    of_keyspaces(&mut text, "sapwood_keyspace_levels", help, &|index| keyspaces[index].levels.into());
    let help = "1 if records of the keyspace may expire.";
    of_keyspaces(&mut text, "sapwood_keyspace_may_expire", help, &|index| keyspaces[index].may_expire.into());

    text.gauge("sapwood_memory_budget_bytes", "The memory budget.", memory.budget);
    text.gauge("sapwood_memory_queue_max_bytes", "Size at which the active queue is full.", memory.queue_max);
    text.family("sapwood_memory_bytes", "gauge", "Memory in use, by part.");
    for (part, bytes) in [
        ("queues", memory.queues),
        ("spare", memory.spare),
        ("cache", memory.cache),
        ("records", memory.records),
        ("mapping_table", memory.mapping_table),
        ("keyspaces", memory.keyspaces),
        ("log_areas", memory.log_areas),
        ("buffers", memory.buffers),
    ] {
        text.sample("sapwood_memory_bytes", &[("part", part)], bytes);
    }

    text.gauge("sapwood_space_live_bytes", "Live nodes and log pieces.", space.live);
    text.gauge("sapwood_space_logged_bytes", "The part of the live bytes in log pieces.", space.logged);
    text.gauge("sapwood_space_log_pieces", "Log pieces.", space.log_pieces);
    text.gauge("sapwood_space_log_runs", "Runs of log pieces.", space.log_runs);
    text.gauge("sapwood_space_logged_changes", "Changes in log pieces.", space.logged_changes);
    text.gauge("sapwood_space_used_bytes", "Segments in use, with dead nodes in them.", space.used);
    text.gauge("sapwood_space_amplification_ratio", "Used by live bytes.", space.amplification);
    text.gauge("sapwood_space_nodes", "Nodes, with log pieces.", space.nodes);
    text.gauge("sapwood_space_segments", "Segments.", space.segments);
    text.gauge("sapwood_space_manifest_bytes", "Manifest files.", space.manifest);
    text.gauge("sapwood_space_log_bytes", "Log files.", space.log);
    text.gauge("sapwood_space_kept_log_bytes", "Log files that are kept for changes only.", space.kept_log);
    text.gauge("sapwood_space_reserve_bytes", "The file that lets a full disk be emptied.", space.reserve);

    text.counter("sapwood_record_cache_hits_total", "Records found in the cache.", reads.record_hits);
    text.counter("sapwood_node_cache_hits_total", "Nodes found in the cache.", reads.cache_hits);
    text.counter("sapwood_node_cache_misses_total", "Nodes read from the device.", reads.cache_misses);
    text.counter("sapwood_read_groups_total", "Parallel reads (psync groups).", reads.psync_groups);
    text.counter("sapwood_read_requests_total", "Requests of parallel reads.", reads.requests);
    text.counter("sapwood_read_bytes_total", "Bytes of parallel reads.", reads.bytes);
    text.counter("sapwood_nodes_read_ahead_total", "Nodes read ahead that a flush needed.", reads.ahead);
    text.counter("sapwood_scan_pieces_read_total", "Log pieces scans read.", reads.pieces_scanned);
    text.counter(
        "sapwood_scan_pieces_cached_total",
        "Log pieces scans had in the cache.",
        reads.pieces_cached,
    );

    text.counter("sapwood_changes_flushed_total", "Changes flushed to the trees.", writes.changes_flushed);
    let help = "The part of the flushed changes that was appended ahead.";
    text.counter("sapwood_changes_appended_ahead_total", help, writes.changes_ahead);
    let help = "Keys and values of flushed changes.";
    text.counter("sapwood_change_flushed_bytes_total", help, writes.change_bytes_flushed);
    text.counter("sapwood_log_written_bytes_total", "Written to the log.", writes.log_bytes);
    text.counter("sapwood_log_syncs_total", "Syncs of the log.", writes.log_syncs);
    text.counter("sapwood_data_written_bytes_total", "Written to the data file.", writes.data_bytes);
    let help = "The part of the data that the collector copied.";
    text.counter("sapwood_collected_bytes_total", help, writes.collected_bytes);
    text.counter("sapwood_manifest_written_bytes_total", "Written to the manifest.", writes.manifest_bytes);
    text.counter("sapwood_flushes_total", "Flushes.", writes.flushes);
    text.counter(
        "sapwood_flush_portions_total",
        "Portions in which flushes were published.",
        writes.portions,
    );
    text.counter("sapwood_blocks_appended_total", "Blocks that flushes appended to.", writes.blocks_appended);
    text.counter(
        "sapwood_blocks_cleansed_total",
        "Blocks whose log areas were cleansed.",
        writes.blocks_cleansed,
    );
    let help = "Blocks cleansed since scans had charged them for it.";
    text.counter("sapwood_blocks_cleansed_for_scans_total", help, writes.blocks_cleansed_for_scans);
    let help = "Blocks whose runs were merged since scans had charged them for it.";
    text.counter("sapwood_blocks_merged_for_scans_total", help, writes.blocks_merged_for_scans);
    let help = "The price of both, in bytes that the device could have moved.";
    text.counter("sapwood_price_for_scans_bytes_total", help, writes.price_for_scans);
    text.gauge("sapwood_changes_queued", "Changes in the operation queues.", writes.changes_queued);
    let us = |us: u64| us as f64 / 1e6;
    let help = "Time that the write throttle slowed writers down, summed over writers.";
    text.counter("sapwood_write_delayed_seconds_total", help, us(writes.delayed_us));
    let help = "Time that a full queue stopped writers, summed over writers.";
    text.counter("sapwood_write_stopped_seconds_total", help, us(writes.stopped_us));

    text.counter("sapwood_device_read_sets_total", "Sets of reads.", device.read_sets);
    text.counter("sapwood_device_reads_total", "Reads.", device.reads);
    text.counter("sapwood_device_read_bytes_total", "Bytes read.", device.bytes_read);
    text.counter("sapwood_device_write_sets_total", "Sets of writes.", device.write_sets);
    text.counter("sapwood_device_writes_total", "Writes.", device.writes);
    text.counter("sapwood_device_written_bytes_total", "Bytes written.", device.bytes_written);
    text.counter("sapwood_device_syncs_total", "Syncs of files and of the directory.", device.syncs);
    text.counter(
        "sapwood_device_stalls_total",
        "Waits that the kernel did not complete in time.",
        device.stalls,
    );
    let longest = device.longest_stall_ms as f64 / 1e3;
    text.gauge("sapwood_device_longest_stall_seconds", "The longest of these waits.", longest);
    text.counter("sapwood_device_timeouts_total", "Sets of requests that were cancelled.", device.timeouts);
    if let Some(latencies) = latencies {
        text.latencies(latencies);
    }
    text.0
}

/// The text as it grows.
#[derive(Default)]
struct Text(String);

impl Text {
    /// Begins a family of samples. Help has no characters that would have to be escaped.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"", if index == 0 { '{' } else { ',' });
            for letter in text.chars() {
                match letter {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    other => self.0.push(other),
                }
            }
            self.0.push('"');
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "counter", help);
        self.sample(name, &[], value);
    }

    fn latencies(&mut self, latencies: &[Latency]) {
        let name = "sapwood_operation_duration_seconds";
        self.family(name, "histogram", "How long operations took, by kind; of some kinds, one in so many.");
        for latency in latencies {
            let operation = ("operation", latency.name());
            let bucket = format!("{name}_bucket");
            for bound in BOUNDS_NS {
                let le = format!("{}", bound as f64 / 1e9);
                let within = latency.within(Duration::from_nanos(bound));
                self.sample(&bucket, &[operation, ("le", &le)], within);
            }
            self.sample(&bucket, &[operation, ("le", "+Inf")], latency.count());
            self.sample(&format!("{name}_sum"), &[operation], latency.sum().as_secs_f64());
            self.sample(&format!("{name}_count"), &[operation], latency.count());
        }
        let name = "sapwood_operation_sampling_ratio";
        self.family(name, "gauge", "The part of the operations of a kind that is timed.");
        for latency in latencies {
            self.sample(name, &[("operation", latency.name())], 1.0 / f64::from(latency.sampled()));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Database, Durability, Stats};
    use psync::Simulated;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    /// A sample: name, labels, value.
    type Sample = (String, Vec<(String, String)>, f64);

    fn is_name(text: &str) -> bool {
        let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
        text.starts_with(letter) && text.chars().all(|c| letter(c) || c.is_ascii_digit())
    }

    /// One line, by the format's grammar.
    fn sample(line: &str) -> Sample {
        let end = line.find(['{', ' ']).expect("a name's end");
        let (name, mut rest) = line.split_at(end);
        assert!(is_name(name), "{line}");
        let mut labels = Vec::new();
        if let Some(inner) = rest.strip_prefix('{') {
            rest = inner;
            loop {
                let (label, value) = rest.split_once("=\"").expect("a label");
                assert!(is_name(label), "{line}");
                let mut text = String::new();
                let mut chars = value.char_indices();
                let end = loop {
                    match chars.next().expect("a closing quote") {
                        (at, '"') => break at + 1,
                        (_, '\\') => text.push(match chars.next().expect("an escape") {
                            (_, 'n') => '\n',
                            (_, c @ ('"' | '\\')) => c,
                            (_, other) => panic!("escape {other:?} in {line}"),
                        }),
                        (_, c) => text.push(c),
                    }
                };
                labels.push((label.to_owned(), text));
                rest = &value[end..];
                match rest.strip_prefix(',') {
                    Some(more) => rest = more,
                    None => break,
                }
            }
            rest = rest.strip_prefix('}').expect("a closing brace");
        }
        let value = rest.strip_prefix(' ').expect("a space before the value");
        (name.to_owned(), labels, value.parse().expect("a number"))
    }

    /// All samples by family, with its kind. Panics where the text is not what the format says.
    fn parse(text: &str) -> BTreeMap<String, (String, Vec<Sample>)> {
        let mut families: BTreeMap<String, (String, Vec<Sample>)> = BTreeMap::new();
        let (mut helped, mut current, mut seen) = (String::new(), String::new(), BTreeSet::new());
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                helped = help.split_once(' ').expect("help").0.to_owned();
            } else if let Some(told) = line.strip_prefix("# TYPE ") {
                let (name, kind) = told.split_once(' ').expect("a kind");
                assert!(["counter", "gauge", "histogram"].contains(&kind) && helped == name, "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(families.insert(name.to_owned(), (kind.to_owned(), Vec::new())).is_none(), "{line}");
                current = name.to_owned();
            } else {
                let found = sample(line);
                let (kind, samples) = families.get_mut(&current).expect("a family");
                let suffix = found.0.strip_prefix(&current).expect("a sample of the family");
                let suffixes: &[_] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                assert!(suffixes.contains(&suffix), "{line}");
                assert!(seen.insert((found.0.clone(), found.1.clone())), "twice: {line}");
                samples.push(found);
            }
        }
        families
    }

    fn numbers(value: &serde_json::Value) -> usize {
        match value {
            serde_json::Value::Array(all) => all.iter().map(numbers).sum(),
            serde_json::Value::Object(all) => all.values().map(numbers).sum(),
            serde_json::Value::Number(_) | serde_json::Value::Bool(_) => 1,
            _ => 0,
        }
    }

    fn used() -> Stats {
        let builder = Database::builder().memory(4 << 20).background_threads(0).latencies(true);
        let db = builder.open_on(Arc::new(Simulated::new(1))).expect("opens");
        let odd = db.keyspace("odd \"\\ name").expect("a keyspace").with_durability(Durability::Buffered);
        (0..100u8).for_each(|number| odd.insert([number], [7; 100]).expect("inserted"));
        db.flush().expect("flushed");
        (0..100u8).for_each(|number| assert!(odd.get([number]).expect("read").is_some()));
        db.stats()
    }

    #[test]
    fn every_number_is_a_sample_and_the_text_is_what_the_format_says() {
        let stats = used();
        let families = parse(&stats.to_prometheus());
        let plain = Stats { latencies: None, ..stats.clone() };
        let samples: usize = parse(&plain.to_prometheus()).values().map(|(_, samples)| samples.len()).sum();
        assert_eq!(samples, numbers(&serde_json::to_value(&plain).expect("serializes")));
        let of = |name: &str| families[name].1[0].clone();
        assert_eq!(of("sapwood_keyspace_records").1, [("keyspace".into(), "odd \"\\ name".into())]);
        assert_eq!(of("sapwood_keyspace_records").2, 100.0);
        assert_eq!(of("sapwood_changes_flushed_total").2, stats.writes.changes_flushed as f64);
        assert_eq!(of("sapwood_data_written_bytes_total").2, stats.writes.data_bytes as f64);
    }

    #[test]
    fn histograms_ascend_to_their_count() {
        let stats = used();
        let families = parse(&stats.to_prometheus());
        let (kind, samples) = &families["sapwood_operation_duration_seconds"];
        assert_eq!(kind, "histogram");
        let latencies = stats.latencies.expect("they are on");
        for latency in &latencies {
            let of_kind = samples.iter().filter(|sample| sample.1[0].1 == latency.name());
            let (buckets, others): (Vec<_>, Vec<_>) = of_kind.partition(|sample| sample.1.len() == 2);
            let bound = |sample: &&Sample| sample.1[1].1.parse::<f64>().expect("a bound");
            assert!(buckets.iter().map(bound).is_sorted() && buckets.is_sorted_by_key(|sample| sample.2));
            assert_eq!(bound(buckets.last().expect("one at least")), f64::INFINITY);
            assert_eq!(buckets.last().expect("one at least").2, latency.count() as f64);
            assert_eq!((others[1].0.ends_with("_count"), others[1].2), (true, latency.count() as f64));
            assert!((others[0].2 - latency.sum().as_secs_f64()).abs() < 1e-9);
        }
        let count =
            |name: &str| latencies.iter().find(|latency| latency.name() == name).expect("a kind").count();
        assert_eq!((count("commit_buffered"), count("commit_immediate")), (100, 0));
        assert!((1..=10).contains(&count("get")) && count("flush") == 1 && count("data_sync") > 0);
        let ratios = &families["sapwood_operation_sampling_ratio"].1;
        assert_eq!((ratios[0].2, ratios[1].2), (1.0 / 13.0, 1.0));
    }
}
