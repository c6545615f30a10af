//! `sapwood-lab arena`: races Sapwood against its peers.

use crate::arena::{Plan, Program, page, picture, race, table};
use crate::arguments::Arena;
use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::progress::{print, tell};
use crate::record::write_whole;
use arena::{Kind, Limits, Records};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Data is this many times the memory, unless told otherwise.
const DATA_OVER_MEMORY: u64 = 8;

/// No store can be expected to work with less.
const MEMORY_MIN: u64 = 32 << 20;

/// Where workers find the text, wherever they run.
fn text(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(|error| Failure::at("find the text", path, error))
}

pub(super) fn arena(arguments: &Arena) -> Result<()> {
    let workloads = Plan::workloads(&arguments.workloads)?;
    let memory = arguments.memory;
    if memory < MEMORY_MIN {
        return Err(Failure::Usage(format!("a memory limit of {memory} bytes; at least {MEMORY_MIN} (32M)")));
    }
    let mut records = Records {
        count: 0,
        key_len: arguments.key_len,
        value_len: arguments.value_len,
        kind: if arguments.text.is_some() { Kind::Text } else { arguments.values.into() },
        text: None,
    };
    records.count = arguments.records.unwrap_or(DATA_OVER_MEMORY * memory / records.len().max(1));
    if let Some(refusal) = records.refusal() {
        return Err(Failure::Usage(refusal));
    }
    let program = Program::find(arguments.worker.as_deref(), arguments.build)?;
    let plan = Plan {
        engines: Plan::engines(&arguments.engines, &program.stores()?)?,
        workloads,
        memory,
        records,
        text: arguments.text.as_deref().map(text).transpose()?,
        codec: arguments.codec.into(),
        disk: arguments.disk.into(),
        limits: Limits {
            cap: arguments.cap.into(),
            steady: arguments.steady.into(),
            warm_up: arguments.warm_up.into(),
        },
        settle: arguments.settle.into(),
        repeat: arguments.repeat,
    };
    check_room(&arguments.dir, plan.room())?;
    std::fs::create_dir_all(&arguments.results)
        .map_err(|error| Failure::at("create", &arguments.results, error))?;
    tell(format_args!(
        "{} stores, {} workloads, {} times, {} records of {} bytes: {} at most",
        plan.engines.len(),
        plan.workloads.len(),
        plan.repeat,
        records.count,
        records.len(),
        humantime::format_duration(plan.longest())
    ));
    interrupt::watch();
    let command: Vec<String> = std::env::args().skip(1).collect();
    let score = race(&plan, &program, &arguments.dir, &format!("sapwood-lab {}", command.join(" ")))?;
    print(table(&score, std::io::stdout().is_terminal()))?;
    let json = score.to_json()?;
    if let Some(file) = &arguments.json {
        if file == Path::new("-") { print(&json)? } else { write_whole(file, &json)? }
    }
    let files = [("arena.json", json), ("arena.svg", picture(&score)), ("arena.html", page(&score))];
    for (name, text) in files {
        let path = arguments.results.join(name);
        write_whole(&path, &text)?;
        tell(path.display());
    }
    if interrupt::pressed() { Err(Failure::Interrupted) } else { Ok(()) }
}

#[cfg(unix)]
fn check_room(dir: &Path, needed: u64) -> Result<()> {
    let stat = nix::sys::statvfs::statvfs(dir).map_err(|error| Failure::at("look at", dir, error))?;
    let free = stat.blocks_available() as u64 * stat.fragment_size() as u64;
    if free < needed {
        let gib = |bytes: u64| bytes as f64 / (1 << 30) as f64;
        return Err(Failure::CannotRun(format!(
            "{} has {:.1} GiB free, and the race may need {:.1} GiB: take fewer --records or another --dir",
            dir.display(),
            gib(free),
            gib(needed)
        )));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_room(_: &Path, _: u64) -> Result<()> {
    Ok(())
}
