//! What the program that holds the race and the process that holds a store say to each other: one JSON object a line, orders
//! on the worker's standard input, answers on its standard output.
//!
//! ```text
//! Open      -> Opened | Failed
//! Run       -> Progress* (Ran | Failed)
//! Close     -> Closed | Failed
//! end of input: the worker drops its store and ends
//! ```
//!
//! Invariant: a worker does nothing before its first order, so that it can be put under its memory limit before.

use crate::drive::{Limits, drive};
use crate::engine::{Engine, Failed, Result, Settings};
use crate::outcome::Outcome;
use crate::records::Records;
use crate::targets::Held;
use crate::text;
use crate::workload::Workload;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::Instant;

/// To a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Open a store.
    Open(Open),
    /// Run a workload on the open store.
    Run {
        /// Which.
        workload: Workload,
        /// How long.
        limits: Limits,
        /// Of what is random.
        seed: u64,
    },
    /// Close the store in good order.
    Close,
}

/// Which store to open, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// Its name.
    pub engine: String,
    /// How.
    pub settings: Settings,
    /// The records of the race.
    pub records: Records,
    /// The text that values of [`Kind::Text`](crate::Kind::Text) are parts of.
    #[serde(default)]
    pub text: Option<PathBuf>,
    /// Whether the database holds them all: then one is read, as part of opening.
    pub loaded: bool,
    /// How many earlier workloads inserted besides.
    pub inserted: u64,
}

/// From a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The store is open.
    Opened {
        /// Seconds that it took, until the first record was read if there are any.
        seconds: f64,
        /// [`Engine::reopens`].
        reopens: bool,
    },
    /// So much of a workload is done.
    Progress {
        /// 0 to 1.
        share: f64,
    },
    /// A workload is over.
    Ran {
        /// What it came to.
        outcome: Outcome,
        /// Records that the database holds beside those loaded.
        inserted: u64,
    },
    /// The store is closed.
    Closed,
    /// It did not work. The store, if it is open, stays so.
    Failed {
        /// What was being done.
        doing: String,
        /// What went wrong.
        reason: String,
    },
}

/// A store, and what is in it.
struct Stage {
    engine: Box<dyn Engine>,
    records: Records,
    held: Held,
}

/// A worker: obeys the orders on `input` until it ends. `open` opens a store by name.
///
/// # Errors
/// When nobody reads `output` any more, or `input` cannot be read.
pub fn serve(
    input: impl BufRead,
    mut output: impl Write,
    open: impl Fn(&str, &Settings) -> Result<Box<dyn Engine>>,
) -> std::io::Result<()> {
    let mut stage: Option<Stage> = None;
    for line in input.lines() {
        let mut answer = |answer: &Answer| -> std::io::Result<()> {
            writeln!(output, "{}", serde_json::to_string(answer)?)?;
            output.flush()
        };
        let done = serde_json::from_str(&line?)
            .map_err(|error| Failed::new("read an order", error))
            .and_then(|order| {
                obey(order, &mut stage, &open, &mut |share| {
                    // If nobody listens any more, the answer below says so.
                    let _ = answer(&Answer::Progress { share });
                })
            });
        answer(&match done {
            Ok(answer) => answer,
            Err(Failed { doing, reason }) => Answer::Failed { doing, reason },
        })?;
    }
    Ok(())
}

fn obey(
    order: Order,
    stage: &mut Option<Stage>,
    open: impl Fn(&str, &Settings) -> Result<Box<dyn Engine>>,
    progress: &mut dyn FnMut(f64),
) -> Result<Answer> {
    match order {
        Order::Open(order) => {
            if stage.is_some() {
                return Err(Failed::new("open", "a store is open already"));
            }
            if let Some(refusal) = order.records.refusal() {
                return Err(Failed::new("open", refusal));
            }
            let mut records = order.records;
            if let Some(path) = &order.text {
                records.text = Some(text::read(path, records.value_len)?);
            }
            let began = Instant::now();
            let engine = open(&order.engine, &order.settings)?;
            let held = Held::new(order.records.count, order.inserted);
            if order.loaded {
                // The last in the random order: half of those before it may have been removed.
                read_one(&*engine, &records, held.at_random(order.records.count - 1))?;
            }
            let seconds = began.elapsed().as_secs_f64();
            let reopens = engine.reopens();
            *stage = Some(Stage { engine, records, held });
            Ok(Answer::Opened { seconds, reopens })
        }
        Order::Run { workload, limits, seed } => {
            let Some(Stage { engine, records, held }) = stage else {
                return Err(Failed::new("run a workload", "no store is open"));
            };
            let outcome = drive(workload, &**engine, records, held, &limits, seed, progress)?;
            Ok(Answer::Ran { outcome, inserted: held.inserted() })
        }
        Order::Close => match stage.take() {
            Some(stage) => stage.engine.close().map(|()| Answer::Closed),
            None => Err(Failed::new("close", "no store is open")),
        },
    }
}

fn read_one(engine: &dyn Engine, records: &Records, number: u64) -> Result<()> {
    let (mut key, mut fits) = (Vec::new(), false);
    records.key(number, &mut key);
    engine.session()?.get(&key, &mut |value| fits = records.fits(number, value))?;
    if fits { Ok(()) } else { Err(Failed::new("open", "the first record that was asked for is not there")) }
}
