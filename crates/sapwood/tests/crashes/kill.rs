//! SIGKILL at random moments under four writing threads, on a real disk: no acknowledged write is lost, no batch is half
//! there, a check is clean each time, and a replica that follows the changes is what the database is.

#![cfg(unix)]

use crate::changes::{Replica, is_equal};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Builder, Database, Durability, Error, Keyspace};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const THREADS: u64 = 4;
/// Longer than a child takes to open its database on a slow disk, beside others.
const READY_WITHIN: Duration = Duration::from_secs(600);
const SLOTS: u64 = 400;
const KEYS: u64 = 5;

/// Of the log that is kept, in bytes: of some kills, so that a replica also comes too late.
const KEPT: u64 = 8 << 20;

fn options() -> Builder {
    Database::builder().memory(4 << 20).leaf_len(1024).segment_span(1 << 20)
}

fn open(path: &Path) -> Database {
    options().open(path).expect("opens")
}

fn counter_key(thread: u64) -> Vec<u8> {
    format!("counter-{thread}").into_bytes()
}

fn slot_key(thread: u64, slot: u64, key: u64) -> Vec<u8> {
    format!("{thread}-{slot:04}-{key}").into_bytes()
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"))
}

fn read_counter(keyspace: &Keyspace, thread: u64) -> u64 {
    keyspace.get(counter_key(thread)).expect("sound").map_or(0, |value| number(&value))
}

/// Whether a part of the log is in this process's memory, where commits are stored to.
fn log_is_mapped() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().any(|line| line.contains("rw-s") && line.contains("/wal-"))
}

/// The child: writes until it is killed. Does nothing in an ordinary run of the tests.
#[test]
fn writes_until_killed() {
    let Ok(path) = std::env::var("SAPWOOD_KILL_PATH") else { return };
    let keep = std::env::var("SAPWOOD_KILL_CHANGES").map_or(0, |_| KEPT);
    let db = options().keep_changes(keep).open(Path::new(&path)).expect("opens");
    let keyspace = db.keyspace("main").expect("a keyspace");
    println!("ready");
    let all_buffered = std::env::var("SAPWOOD_KILL_BUFFERED").is_ok();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, keyspace) = (db.clone(), keyspace.clone());
            scope.spawn(move || {
                let mut at = read_counter(&keyspace, thread);
                loop {
                    at += 1;
                    let mut value = at.to_le_bytes().to_vec();
                    value.resize(200, at as u8);
                    let mut batch = db.batch();
                    for key in 0..KEYS {
                        batch.insert(&keyspace, slot_key(thread, at % SLOTS, key), &value);
                    }
                    batch.insert(&keyspace, counter_key(thread), at.to_le_bytes());
                    let immediate = at.is_multiple_of(3) && !all_buffered;
                    let durability = if immediate { Durability::Immediate } else { Durability::Buffered };
                    batch.durability(durability).commit().expect("commits");
                    if all_buffered && thread == 0 && at.is_multiple_of(16) && log_is_mapped() {
                        println!("mapped");
                    }
                    // One write of less than PIPE_BUF bytes: whole or not at all.
                    let line = format!("ack {thread} {at}\n");
                    std::io::stdout().lock().write_all(line.as_bytes()).expect("a pipe");
                    std::io::stdout().flush().expect("a pipe");
                }
            });
        }
    });
}

/// Checks what is there after a kill against what was acknowledged before it.
fn verify(path: &Path, acknowledged: &[u64], replica: &mut Replica, story: &str) {
    let db = open(path);
    let keyspace = db.keyspace("main").expect("a keyspace");
    for thread in 0..THREADS {
        let last = read_counter(&keyspace, thread);
        let least = acknowledged[thread as usize];
        assert!(last >= least, "{story}: thread {thread} was told of {least}, but {last} is there");
        for slot in 0..SLOTS {
            // The newest batch of this slot.
            let expected = (last + SLOTS - slot) / SLOTS * SLOTS + slot;
            let expected = if expected > last { expected.saturating_sub(SLOTS) } else { expected };
            let keys: Vec<_> = (0..KEYS).map(|key| slot_key(thread, slot, key)).collect();
            for value in keyspace.multi_get(&keys).expect("sound") {
                let found = value.map_or(0, |value| number(&value));
                assert_eq!(
                    found, expected,
                    "{story}: thread {thread}, slot {slot}: a batch is half there or lost"
                );
            }
        }
    }
    if let Err(error) = db.check() {
        panic!("{story}: {error:?}");
    }
    // Half of the databases keep changes, when their first child has come so far.
    if db.oldest_change().is_ok() {
        match replica.follow(&db, usize::MAX) {
            Err(Error::ChangesGone { .. }) => replica.copy(&db).expect("copies"),
            followed => _ = followed.unwrap_or_else(|error| panic!("{story}: {error}")),
        }
        is_equal(&db, replica, story);
    }
}

/// Kills children that write to one database, one after the other; those of every second database want nothing durable, and those of every
/// second pair keep changes. Says how many
/// batches they were told of, and how many children were seen to have the log mapped.
fn kill_and_verify(kills: u64, seed: u64) -> (u64, u64) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("db");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut acknowledged = vec![0u64; THREADS as usize];
    let (mut total, mut mapped) = (0, 0);
    let mut replica = Replica::default();
    for kill in 0..kills {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--exact", "kill::writes_until_killed", "--nocapture"])
            .env("SAPWOOD_KILL_PATH", &path)
            .envs((seed % 2 == 1).then_some(("SAPWOOD_KILL_BUFFERED", "yes")))
            .envs((seed % 4 >= 2).then_some(("SAPWOOD_KILL_CHANGES", "yes")))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a child");
        let (sender, lines) = mpsc::channel();
        let output = child.stdout.take().expect("a pipe");
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut wait = Duration::from_micros(rng.random_range(0..60_000));
        if rng.random_bool(0.1) {
            // Before it is even open.
            std::thread::sleep(wait / 4);
        } else {
            let began = Instant::now();
            while lines.recv_timeout(READY_WITHIN).expect("the child never got ready") != "ready" {}
            assert!(began.elapsed() < READY_WITHIN, "the child never got ready");
            if rng.random_bool(0.05) {
                wait *= 10;
            }
            std::thread::sleep(wait);
        }
        let ended = child.try_wait().expect("a child");
        assert!(ended.is_none(), "seed {seed}, kill {kill}: the child ended by itself: {ended:?}");
        child.kill().expect("killed");
        child.wait().expect("dead");
        reader.join().expect("read");
        let mut is_mapped = false;
        for line in lines.try_iter() {
            is_mapped |= line == "mapped";
            let mut words = line.split(' ');
            if words.next() == Some("ack") {
                let (thread, at): (usize, u64) = (
                    words.next().expect("thread").parse().expect("number"),
                    words.next().expect("at").parse().expect("number"),
                );
                acknowledged[thread] = acknowledged[thread].max(at);
                total += 1;
            }
        }
        mapped += u64::from(is_mapped);
        verify(&path, &acknowledged, &mut replica, &format!("seed {seed}, kill {kill}"));
    }
    assert!(u64::from(replica.copies) < kills, "it followed: {} copies", replica.copies);
    (total, mapped)
}

/// Mostly they wait, so several databases at a time.
#[test]
fn kills_lose_nothing_that_was_acknowledged() {
    let kills = std::env::var("SAPWOOD_KILLS").map_or(120, |kills| kills.parse().expect("a number"));
    let databases = 4;
    let (total, mapped) = std::thread::scope(|scope| {
        let each = (0..databases).map(|seed| scope.spawn(move || kill_and_verify(kills / databases, seed)));
        let turns = each.collect::<Vec<_>>().into_iter().map(|turn| turn.join().expect("none lost"));
        turns.fold((0, 0), |sum, turn| (sum.0 + turn.0, sum.1 + turn.1))
    });
    println!("{kills} kills, {mapped} of them with the log mapped, {total} acknowledged batches, none lost");
    assert!(total > kills, "the children got to work: {total} batches");
    if mapped == 0 {
        eprintln!("SKIPPED: no log was mapped, as on file systems other than ext4 and tmpfs");
    }
}
