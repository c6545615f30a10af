//! `sapwood top`: a live view of a database that another process writes. It follows that process by its files, and asks the operating
//! system what it takes; the process itself notices nothing.
//!
//! ```text
//! refresh, stats, /proc ─▶ Sample ─┬▶ View (rates of two samples) ─▶ text, drawn over the one before
//!                 one a tick       └▶ a line of JSON
//! ```

mod process;
mod view;

use crate::arguments::Top as Options;
use crate::command::{Opening, refuse_file};
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::output::print;
use process::Usage;
use sapwood::{Database, Error, Stats};
use std::collections::VecDeque;
use std::io::{IsTerminal, stdout};
use std::path::Path;
use std::time::{Duration, Instant};
use view::View;

/// How often Ctrl-C is looked for while nothing is to be drawn.
const LOOK: Duration = Duration::from_millis(50);
/// Rates that are drawn as a line of bars (count): a minute of them, unless told otherwise.
const HISTORY: usize = 60;

/// What is known at one moment.
struct Sample {
    at: Instant,
    /// Changes of keys since the database was created.
    sequence: u64,
    stats: Stats,
    /// Who writes, as it says itself.
    writer: Option<String>,
    usage: Option<Usage>,
}

impl Sample {
    fn take(db: &Database, path: &Path) -> Result<Self> {
        let sequence = db.refresh()?.sequence;
        let (writer, id) = process::writer(path).map_or((None, None), |(note, id)| (Some(note), id));
        let usage = id.and_then(Usage::of);
        Ok(Self { at: Instant::now(), sequence, stats: db.stats(), writer, usage })
    }
}

/// Opens the database so that nothing waits for this.
fn open(path: &Path, opening: &Opening) -> Result<Database> {
    refuse_file(path)?;
    match opening.at_once().create(false).follow(true).open(path) {
        Err(Error::NotFollowable { .. }) => Err(Failure::Other(format!(
            "{0} was never opened for writing by a program that tells others how far it is: sapwood stats {0}",
            path.display()
        ))),
        opened => Ok(opened?),
    }
}

pub(crate) fn run(options: &Options, opening: &Opening) -> Result<()> {
    interrupt::watch();
    let db = open(&options.db, opening)?;
    let is_terminal = stdout().is_terminal() && !options.json;
    let terminal = console::Term::stdout();
    let mut rates = VecDeque::new();
    let mut before = Sample::take(&db, &options.db)?;
    let mut drawn = 0;
    loop {
        while before.at.elapsed() < options.interval && !interrupt::pressed() {
            std::thread::sleep(LOOK.min(options.interval));
        }
        if interrupt::pressed() {
            // It is how this command ends.
            return Ok(());
        }
        let now = Sample::take(&db, &options.db)?;
        let view = View::of(&options.db, &before, &now);
        rates.push_back(view.operations);
        if rates.len() > HISTORY {
            rates.pop_front();
        }
        if options.json {
            print(view.json())?;
        } else {
            let width = if is_terminal { usize::from(terminal.size().1) } else { usize::MAX };
            let text = view.text(&rates, width);
            if is_terminal && drawn > 0 {
                terminal.clear_last_lines(drawn)?;
            }
            drawn = text.lines().count();
            print(&text)?;
        }
        if options.once {
            return Ok(());
        }
        before = now;
    }
}
