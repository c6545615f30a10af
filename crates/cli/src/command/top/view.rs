//! What is shown: rates between two samples, as text and as JSON.

use super::Sample;
use crate::escape::escape;
use crate::progress::human_bytes;
use serde_json::json;
use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::path::Path;

/// Keyspaces that are shown (count), those with the most changes first: a screen has no room for more.
const KEYSPACES: usize = 12;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Columns before the values of a line.
const NAME: usize = 12;

/// See the module.
pub(super) struct View<'s> {
    path: String,
    now: &'s Sample,
    /// Changes of keys a second.
    pub operations: f64,
    /// Of the process that writes: processors, bytes read and written a second.
    processors: Option<f64>,
    io: Option<(f64, f64)>,
    keyspaces: Vec<Row>,
}

struct Row {
    name: String,
    records: u64,
    levels: u8,
    /// Records that came or went a second, by what is in the trees.
    grows: f64,
}

impl<'s> View<'s> {
    pub fn of(path: &Path, before: &Sample, now: &'s Sample) -> Self {
        let seconds = (now.at - before.at).as_secs_f64().max(1e-3);
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let usages = now.usage.zip(before.usage).filter(|_| now.writer == before.writer);
        let old: HashMap<_, _> =
            before.stats.keyspaces.iter().map(|keyspace| (&keyspace.name, keyspace.records)).collect();
        let mut keyspaces: Vec<_> = now
            .stats
            .keyspaces
            .iter()
            .map(|keyspace| {
                let before = old.get(&keyspace.name).copied().unwrap_or(0);
                let grows = (keyspace.records as f64 - before as f64) / seconds;
                Row { name: keyspace.name.clone(), records: keyspace.records, levels: keyspace.levels, grows }
            })
            .collect();
        keyspaces.sort_by(|a, b| b.grows.abs().total_cmp(&a.grows.abs()).then(b.records.cmp(&a.records)));
        Self {
            path: path.display().to_string(),
            now,
            operations: rate(now.sequence, before.sequence),
            processors: usages
                .map(|(now, old)| now.processor.saturating_sub(old.processor).as_secs_f64() / seconds),
            io: usages.map(|(now, old)| (rate(now.read, old.read), rate(now.written, old.written))),
            keyspaces,
        }
    }

    /// Lines of at most `width` columns. `rates`: those of the last ticks.
    pub fn text(&self, rates: &VecDeque<f64>, width: usize) -> String {
        let (space, writes) = (&self.now.stats.space, &self.now.stats.writes);
        let mut text = String::new();
        let writer = match &self.now.writer {
            Some(writer) => format!("written by {writer}"),
            None => "no process writes it".to_owned(),
        };
        let _ = writeln!(text, "{}: {writer}", self.path);
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "{name:<NAME$}{value}");
        };
        line("changes", &format!("{:>10}/s  {}", grouped(self.operations), bars(rates)));
        if let Some(usage) = &self.now.usage {
            let of_last = self.processors.map_or(String::new(), |used| format!("{:.0} %, ", used * 100.0));
            line("processor", &format!("{of_last}memory {}", human_bytes(usage.memory)));
        }
        if let Some((read, written)) = self.io {
            let (read, written) = (human_bytes(read as u64), human_bytes(written as u64));
            line("device", &format!("{read}/s read, {written}/s written"));
        }
        line(
            "space",
            &format!(
                "{} live, {} used ({:.2} x) in {} segments",
                human_bytes(space.live),
                human_bytes(space.used),
                space.amplification,
                space.segments
            ),
        );
        line("log", &format!("{}, manifest {}", human_bytes(space.log), human_bytes(space.manifest)));
        line(
            "waiting",
            &format!(
                "{} changes for a flush, {} in {} log pieces for the leaves",
                grouped(writes.changes_queued as f64),
                grouped(space.logged_changes as f64),
                grouped(space.log_pieces as f64)
            ),
        );
        let _ = writeln!(text, "{:<28}{:>16}{:>14}{:>8}", "keyspace", "records", "more /s", "levels");
        for row in self.keyspaces.iter().take(KEYSPACES) {
            let name: String = escape(row.name.as_bytes()).chars().take(27).collect();
            let grows = if row.grows == 0.0 { String::new() } else { signed(row.grows) };
            let records = grouped(row.records as f64);
            let _ = writeln!(text, "{name:<28}{records:>16}{grows:>14}{:>8}", row.levels);
        }
        if self.keyspaces.len() > KEYSPACES {
            let _ = writeln!(text, "and {} more", self.keyspaces.len() - KEYSPACES);
        }
        let cut = text.lines().map(|line| line.chars().take(width).collect::<String>());
        cut.collect::<Vec<_>>().join("\n")
    }

    pub fn json(&self) -> String {
        let usage = self.now.usage.map(|usage| {
            json!({
                "memory": usage.memory,
                "processors": self.processors,
                "read_per_second": self.io.map(|(read, _)| read),
                "written_per_second": self.io.map(|(_, written)| written),
            })
        });
        json!({
            "writer": self.now.writer,
            "sequence": self.now.sequence,
            "changes_per_second": self.operations,
            "process": usage,
            "stats": self.now.stats,
        })
        .to_string()
    }
}

/// A number with a comma every three digits.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn signed(number: f64) -> String {
    format!("{}{}", if number < 0.0 { '-' } else { '+' }, grouped(number.abs()))
}

/// A bar for each rate, the highest as high as there is.
fn bars(rates: &VecDeque<f64>) -> String {
    let most = rates.iter().copied().fold(1.0, f64::max);
    let bar = |rate: &f64| BARS[((rate / most * 7.0).round() as usize).min(7)];
    rates.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::top::process::Usage;
    use sapwood::psync::Simulated;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    #[test]
    fn numbers_are_for_people() {
        assert_eq!([0.0, 999.4, 1000.0, 1234567.0].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([-1500.0, 20.0].map(signed), ["-1,500", "+20"]);
        assert_eq!(bars(&VecDeque::from([0.0, 50.0, 100.0])), "▁▅█");
        assert_eq!(bars(&VecDeque::from([0.0])), "▁");
    }

    #[test]
    fn rates_are_of_the_time_between() {
        let volume = Arc::new(Simulated::new(1));
        let db = sapwood::Database::builder().background_threads(0).open_on(volume).unwrap();
        let keyspace = db.keyspace("ships").unwrap();
        let begin = Instant::now();
        let sample = |sequence, seconds: u64, millis| Sample {
            at: begin + Duration::from_secs(seconds),
            sequence,
            stats: db.stats(),
            writer: Some("process 1, ships".to_owned()),
            usage: Some(Usage {
                processor: Duration::from_millis(millis),
                memory: 5 << 20,
                read: millis << 20,
                written: 0,
            }),
        };
        let before = sample(100, 0, 0);
        (0..5000u32).for_each(|number| keyspace.insert(number.to_be_bytes(), "x").unwrap());
        db.flush().unwrap();
        let now = sample(20_100, 2, 3000);
        let view = View::of(Path::new("ships.db"), &before, &now);
        let text = view.text(&VecDeque::from([1.0, view.operations]), 200);
        for part in [
            "ships.db: written by process 1, ships",
            "10,000/s",
            "150 %, memory 5.00 MiB",
            "+2,500",
            "ships  ",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(view.text(&VecDeque::new(), 20).lines().all(|line| line.chars().count() <= 20));
        let json: serde_json::Value = serde_json::from_str(&view.json()).unwrap();
        assert_eq!(
            (&json["sequence"], &json["stats"]["keyspaces"][0]["name"]),
            (&20_100.into(), &"ships".into())
        );
        // Another process may have taken its place.
        let other = Sample { writer: Some("process 2, ships".to_owned()), ..sample(20_100, 4, 0) };
        let view = View::of(Path::new("ships.db"), &now, &other);
        assert!(!view.text(&VecDeque::new(), 200).contains('%'));
    }
}
