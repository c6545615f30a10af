//! What an experiment records: one row for each point and run, and the questions that predicates ask of them.
//!
//! Invariants:
//! 1. All rows of one record were timed by one clock: the type says by which.
//! 2. A question about rows that are not there is an error that names them, never an answer.
//! 3. A table written as CSV reads back as it was.

use crate::quantity::{Clock, Lapse, Quantity, Rate, Spread};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One point of one line, measured once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Row<C: Clock> {
    /// Which line of the picture this belongs to.
    pub series: String,
    /// The value of what is varied.
    pub at: f64,
    /// Which repetition, from 0.
    pub run: u32,
    /// Requests (or operations) done.
    pub requests: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Time for all of them.
    pub elapsed_us: Lapse<C>,
    /// What else was counted, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, f64>,
}

impl<C: Clock> Row<C> {
    /// Time for one request: its latency, if there was one at a time.
    pub fn latency(&self) -> Lapse<C> {
        self.elapsed_us.each(self.requests)
    }

    /// Bytes a second.
    pub fn bandwidth(&self) -> Rate<C> {
        self.elapsed_us.rate(self.bytes)
    }

    /// Something that was counted. Not a number if it was not.
    pub fn count(&self, name: &str) -> f64 {
        self.counts.get(name).copied().unwrap_or(f64::NAN)
    }
}

/// A predicate asked for something that was not recorded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("nothing was recorded for {series} at {at}")]
pub struct Missing {
    series: String,
    at: f64,
}

/// All rows of an experiment on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent, bound = "")]
pub struct Rows<C: Clock>(pub Vec<Row<C>>);

/// Why a table cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct BadTable {
    line: u64,
    what: String,
}

const COLUMNS: [&str; 6] = ["series", "at", "run", "requests", "bytes", "elapsed_us"];

impl<C: Clock> Rows<C> {
    /// Names of the lines, in the order in which they were recorded first.
    pub fn series(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for row in &self.0 {
            if !names.contains(&row.series.as_str()) {
                names.push(&row.series);
            }
        }
        names
    }

    /// Where a line was measured, ascending.
    pub fn points(&self, series: &str) -> Vec<f64> {
        let mut points: Vec<f64> =
            self.0.iter().filter(|row| row.series == series).map(|row| row.at).collect();
        points.sort_by(f64::total_cmp);
        points.dedup();
        points
    }

    /// How many runs the points have: the least and the most.
    pub fn runs(&self) -> (usize, usize) {
        let mut all: Vec<(&str, u64, u32)> =
            self.0.iter().map(|row| (row.series.as_str(), row.at.to_bits(), row.run)).collect();
        all.sort_unstable();
        all.dedup();
        let points = all.chunk_by(|one, two| (one.0, one.1) == (two.0, two.1)).map(<[_]>::len);
        (points.clone().min().unwrap_or(0), points.max().unwrap_or(0))
    }

    /// Median, least and most of all runs of a point.
    ///
    /// # Errors
    /// [`Missing`] if there are no such rows, or if they do not have the figure.
    pub fn spread<Q: Quantity>(
        &self,
        series: &str,
        at: f64,
        figure: impl Fn(&Row<C>) -> Q,
    ) -> Result<Spread<Q>, Missing> {
        let rows = self.0.iter().filter(|row| row.series == series && row.at == at);
        Spread::of(rows.map(figure)).ok_or_else(|| Missing { series: series.to_owned(), at })
    }

    /// The median alone.
    ///
    /// # Errors
    /// As [`Rows::spread`].
    pub fn median<Q: Quantity>(
        &self,
        series: &str,
        at: f64,
        figure: impl Fn(&Row<C>) -> Q,
    ) -> Result<Q, Missing> {
        self.spread(series, at, figure).map(|spread| spread.median)
    }

    /// The medians of a whole line, by ascending point.
    ///
    /// # Errors
    /// As [`Rows::spread`]; also if the line has no point.
    pub fn line<Q: Quantity>(
        &self,
        series: &str,
        figure: impl Fn(&Row<C>) -> Q,
    ) -> Result<Vec<(f64, Q)>, Missing> {
        let points = self.points(series);
        if points.is_empty() {
            return Err(Missing { series: series.to_owned(), at: f64::NAN });
        }
        points.into_iter().map(|at| Ok((at, self.median(series, at, &figure)?))).collect()
    }

    /// As CSV, with a column for each count that any row has.
    pub fn to_csv(&self) -> String {
        let mut names: Vec<&String> = self.0.iter().flat_map(|row| row.counts.keys()).collect();
        names.sort_unstable();
        names.dedup();
        let mut writer = csv::Writer::from_writer(Vec::new());
        let head = COLUMNS.into_iter().chain(names.iter().map(|name| name.as_str()));
        let mut lines: Vec<Vec<String>> = vec![head.map(str::to_owned).collect()];
        for row in &self.0 {
            let mut line = vec![
                row.series.clone(),
                row.at.to_string(),
                row.run.to_string(),
                row.requests.to_string(),
                row.bytes.to_string(),
                row.elapsed_us.number().to_string(),
            ];
            let count = |name: &&String| row.counts.get(*name).map(f64::to_string).unwrap_or_default();
            line.extend(names.iter().map(count));
            lines.push(line);
        }
        for line in lines {
            writer.write_record(line).expect("memory takes every record of one width");
        }
        let bytes = writer.into_inner().expect("memory can be flushed");
        String::from_utf8(bytes).expect("strings were written")
    }

    /// From CSV.
    ///
    /// # Errors
    /// [`BadTable`] names the line, and what is wrong with it.
    pub fn from_csv(text: &str) -> Result<Self, BadTable> {
        let bad = |line, what: String| BadTable { line, what };
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let head = reader.headers().map_err(|error| bad(1, error.to_string()))?.clone();
        if head.len() < COLUMNS.len() || head.iter().zip(COLUMNS).any(|(found, wanted)| found != wanted) {
            return Err(bad(1, format!("the columns do not begin with {}", COLUMNS.join(","))));
        }
        let mut rows = Vec::new();
        for record in reader.records() {
            let record = record
                .map_err(|error| bad(error.position().map_or(0, csv::Position::line), error.to_string()))?;
            let line = record.position().map_or(0, csv::Position::line);
            let field = |index: usize| record.get(index).unwrap_or_default();
            fn number<N: std::str::FromStr>(text: &str, column: &str, line: u64) -> Result<N, BadTable> {
                text.parse().map_err(|_| BadTable { line, what: format!("{column} is {text:?}") })
            }
            let mut counts = BTreeMap::new();
            for index in COLUMNS.len()..head.len() {
                if !field(index).is_empty() {
                    counts.insert(head[index].to_owned(), number(field(index), &head[index], line)?);
                }
            }
            rows.push(Row {
                series: field(0).to_owned(),
                at: number(field(1), "at", line)?,
                run: number(field(2), "run", line)?,
                requests: number(field(3), "requests", line)?,
                bytes: number(field(4), "bytes", line)?,
                elapsed_us: Lapse::micros(number(field(5), "elapsed_us", line)?),
                counts,
            });
        }
        Ok(Self(rows))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::experiment::Measured;
    use crate::quantity::Wall;

    /// A row of 1000 requests of 4 KiB that took `micros` each.
    pub(crate) fn row<C: Clock>(series: &str, at: f64, run: u32, micros: f64) -> Row<C> {
        Row {
            series: series.to_owned(),
            at,
            run,
            requests: 1000,
            bytes: 4_096_000,
            elapsed_us: Lapse::micros(micros * 1000.0),
            counts: BTreeMap::new(),
        }
    }

    #[test]
    fn figures_of_a_row() {
        let row = row::<Wall>("read", 1.0, 0, 50.0);
        assert_eq!(row.latency().number(), 50.0);
        assert_eq!(row.bandwidth().number(), 4096.0 / 50e-6);
        assert!(row.count("switches").is_nan());
    }

    #[test]
    fn runs_of_points_are_counted() {
        let mut rows = Rows::<Wall>(vec![row("read", 2.0, 0, 9.0), row("write", 2.0, 0, 9.0)]);
        assert_eq!((rows.runs(), Measured::Wall(rows.clone()).runs().as_str()), ((1, 1), "one run"));
        rows.0.extend([row("read", 2.0, 1, 5.0), row("read", 2.0, 4, 5.0)]);
        assert_eq!(
            (rows.runs(), Measured::Wall(rows.clone()).runs().as_str()),
            ((1, 3), "medians of 1 to 3 runs")
        );
        rows.0.retain(|row| row.series == "read");
        assert_eq!(Measured::Wall(rows).runs(), "medians of 3 runs");
    }

    #[test]
    fn medians_over_runs_and_what_is_missing() {
        let rows = Rows::<Wall>(vec![
            row("read", 2.0, 0, 9.0),
            row("read", 2.0, 1, 5.0),
            row("read", 2.0, 2, 6.0),
            row("read", 1.0, 0, 4.0),
        ]);
        assert_eq!(rows.median("read", 2.0, Row::latency).unwrap().number(), 6.0);
        assert_eq!(rows.points("read"), [1.0, 2.0]);
        let line = rows.line("read", |row| row.latency().number()).unwrap();
        assert_eq!(line, [(1.0, 4.0), (2.0, 6.0)]);
        let missing = rows.median("read", 3.0, Row::latency).unwrap_err();
        assert_eq!(missing.to_string(), "nothing was recorded for read at 3");
        assert!(rows.line("write", Row::latency).is_err());
        assert!(rows.median("read", 1.0, |row| row.count("switches")).is_err());
    }

    #[test]
    fn a_table_reads_back_as_it_was() {
        let mut rows =
            Rows::<Wall>(vec![row("read, \"hot\"", 0.5, 0, 1.0 / 3.0), row("write", 4.0, 1, 1e-9)]);
        // One that fast readers of JSON get wrong in the last digit.
        rows.0[1].elapsed_us = Lapse::micros(3_073.779_999_999_999_7);
        rows.0[1].counts.insert("context switches".into(), 7.25);
        rows.0[0].counts.insert("cpu_us".into(), 1e7);
        let table = rows.to_csv();
        assert_eq!(Rows::from_csv(&table).unwrap(), rows, "{table}");
        let json = serde_json::to_string(&rows).unwrap();
        assert_eq!(serde_json::from_str::<Rows<Wall>>(&json).unwrap(), rows, "{json}");
        assert_eq!(Rows::<Wall>::from_csv(&Rows::<Wall>::default().to_csv()).unwrap().0.len(), 0);
    }

    #[test]
    fn bad_tables_are_named_by_line() {
        let refuse = |table: &str| Rows::<Wall>::from_csv(table).unwrap_err().to_string();
        assert_eq!(
            refuse("a,b\n"),
            "line 1: the columns do not begin with series,at,run,requests,bytes,elapsed_us"
        );
        let head = "series,at,run,requests,bytes,elapsed_us\n";
        assert_eq!(refuse(&format!("{head}read,1,0,5,5,1\nread,many,0,5,5,1\n")), "line 3: at is \"many\"");
        assert!(refuse(&format!("{head}read,1,0\n")).starts_with("line 2: "));
    }
}
