//! The part of the tour that does not end well, for a child process: it writes and says what was acknowledged, until it
//! is killed; then everything that it said must be there.

use crate::failure::{Failure, Result};
use crate::interrupt;
use crate::output::print;
use sapwood::{Database, Durability};
use std::io::{BufRead, BufReader, Write, stdout};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const KEYS: u64 = 10;
const MEMORY: u64 = 8 << 20;

fn open(path: &Path) -> Result<Database> {
    Ok(Database::builder().memory(MEMORY).open(path)?)
}

fn key(batch: u64, number: u64) -> Vec<u8> {
    format!("batch {batch:08} key {number}").into_bytes()
}

/// The child: batches of ten, each durable before it is said.
pub(super) fn write(path: &Path) -> Result<()> {
    let db = open(path)?;
    let keyspace = db.keyspace("default")?;
    for number in 1u64.. {
        let mut batch = db.batch();
        for index in 0..KEYS {
            batch.insert(&keyspace, key(number, index), [number as u8; 200]);
        }
        batch.durability(Durability::Immediate).commit()?;
        let mut output = stdout().lock();
        writeln!(output, "{number}")?;
        output.flush()?;
    }
    Ok(())
}

pub(super) fn show(dir: &Path, table: &mut Vec<(String, String)>) -> Result<()> {
    let path = dir.join("killed.db");
    let cannot = |error: std::io::Error| Failure::Other(format!("the child process: {error}"));
    let mut child = Command::new(std::env::current_exe().map_err(cannot)?)
        .args(["tour", "--write-until-killed", "--dir"])
        .arg(&path)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(cannot)?;
    let output = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let lines =
            output.into_iter().flat_map(|output| BufReader::new(output).lines().map_while(|line| line.ok()));
        lines.filter_map(|line| line.parse::<u64>().ok()).last().unwrap_or(0)
    });
    std::thread::sleep(Duration::from_millis(1500));
    child.kill().map_err(cannot)?;
    child.wait().map_err(cannot)?;
    let acknowledged = reader.join().unwrap_or(0);
    interrupt::go_on()?;
    let db = open(&path)?;
    let keyspace = db.keyspace("default")?;
    let (mut whole, mut half, mut batch) = (0u64, 0u64, 0u64);
    loop {
        interrupt::go_on()?;
        batch += 1;
        let keys: Vec<_> = (0..KEYS).map(|index| key(batch, index)).collect();
        let found = keyspace.multi_get(&keys)?.into_iter().flatten().count() as u64;
        match found {
            0 => break,
            KEYS => whole += 1,
            _ => half += 1,
        }
    }
    let checked = db.check()?;
    print(format_args!(
        "a child process was killed after it had said that {acknowledged} batches of {KEYS} records were durable"
    ))?;
    print(format_args!("found again: {whole} whole batches, {half} half ones; check: {checked}"))?;
    if whole < acknowledged || half > 0 {
        return Err(Failure::Damage(format!(
            "{acknowledged} batches were acknowledged, but {whole} are there"
        )));
    }
    table.push((
        "after SIGKILL".into(),
        format!("{acknowledged} acknowledged batches, {whole} found, none half"),
    ));
    Ok(())
}
