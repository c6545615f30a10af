//! A replica: a second database that follows the first one by its changes, and stores how far it is together with them, in one
//! commit. It may be killed or be away for a while, and has each change once.
//!
//! `cargo run -p sapwood --example replica`

use sapwood::{
    Batch, Change, ChangesPosition, CommittedOperation, Database, Durability, Error, Expiry, Keyspace, Result,
};
use std::time::Duration;

/// Commits of the original that the replica takes together, at most: so many share a sync.
const TOGETHER: usize = 500;

struct Replica {
    db: Database,
    /// Name → how far the replica is.
    state: Keyspace,
}

impl Replica {
    fn open(path: &std::path::Path) -> Result<Self> {
        let db = Database::open(path)?;
        let state = db.keyspace("replica: state")?;
        Ok(Self { db, state })
    }

    fn position(&self) -> Result<Option<ChangesPosition>> {
        let stored = self.state.get("position")?;
        Ok(stored.and_then(|bytes| ChangesPosition::from_bytes(&bytes)))
    }

    /// The replica's keyspace for one of the original: by number, which stays when it is renamed.
    fn keyspace(&self, number: u32) -> Result<Keyspace> {
        self.db.keyspace(&format!("replica: {number}"))
    }

    /// Copies everything. Until the position is stored, the next attempt begins anew.
    fn copy(&self, original: &Database) -> Result<()> {
        self.state.clear()?;
        for old in self.db.keyspaces().iter().filter(|name| *name != self.state.name()) {
            self.db.drop_keyspace(old)?;
        }
        let (snapshot, position) = original.snapshot_for_changes()?;
        for keyspace in snapshot.keyspaces() {
            assert!(!keyspace.options()?.is_expiring(), "this replica knows no records that expire");
            let mut failed = None;
            let records = snapshot.iter(&keyspace);
            let records = records.map_while(|record| record.map_err(|error| failed = Some(error)).ok());
            self.keyspace(keyspace.number())?.ingest(records)?;
            failed.map_or(Ok(()), Err)?;
            self.state.insert(format!("name {}", keyspace.number()), keyspace.name())?;
        }
        self.state.insert("position", position.to_bytes())
    }

    /// Takes what has changed. Returns how many commits.
    fn follow(&self, original: &Database) -> Result<u64> {
        let Some(position) = self.position()? else {
            self.copy(original)?;
            return Ok(0);
        };
        let (mut changes, mut commits) = (original.changes(&position)?, 0);
        loop {
            let mut batch = self.db.batch();
            for change in changes.by_ref().take(TOGETHER) {
                match change {
                    Ok(Change::Commit(commit)) => {
                        commits += 1;
                        commit.operations().try_for_each(|operation| self.apply(&mut batch, operation))?;
                    }
                    Ok(Change::KeyspaceCreated { id, name } | Change::KeyspaceRenamed { id, name }) => {
                        batch.insert(&self.state, format!("name {id}"), name);
                    }
                    Ok(Change::KeyspaceDropped { id, .. }) => {
                        batch.remove_range(&self.keyspace(id)?, ..);
                        batch.remove(&self.state, format!("name {id}"));
                    }
                    // Records that are told in no other way, or changes that were given up before this replica came to them.
                    Ok(Change::KeyspaceIngested { .. }) | Err(Error::ChangesGone { .. }) => {
                        self.copy(original)?;
                        return Ok(commits);
                    }
                    Ok(other) => panic!("this replica knows no {other:?}"),
                    Err(error) => return Err(error),
                }
            }
            if batch.is_empty() {
                return Ok(commits);
            }
            // The changes and how far the replica is with them, or neither.
            batch.insert(&self.state, "position", changes.position().to_bytes());
            batch.durability(Durability::Immediate).commit()?;
        }
    }

    fn apply(&self, batch: &mut Batch, operation: CommittedOperation<'_>) -> Result<()> {
        let copy = self.keyspace(operation.keyspace().id)?;
        match operation {
            CommittedOperation::Insert { key, value, expiry: Expiry::Never, .. } => {
                _ = batch.insert(&copy, key, value)
            }
            CommittedOperation::Remove { key, .. } => _ = batch.remove(&copy, key),
            CommittedOperation::RemoveRange { from, to: Some(to), .. } => {
                batch.remove_range(&copy, from..to);
            }
            CommittedOperation::RemoveRange { from, to: None, .. } => _ = batch.remove_range(&copy, from..),
            other => panic!("this replica knows no {other:?}"),
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let original = Database::builder().keep_changes(64 << 20).open(dir.path().join("ships.db"))?;
    let (ships, harbours) = (original.keyspace("ships")?, original.keyspace("harbours")?);
    ships.ingest((0..10_000u32).map(|number| (number.to_be_bytes(), "built")))?;
    let path = dir.path().join("replica.db");
    Replica::open(&path)?.follow(&original)?;
    println!("copied: {} ships", Replica::open(&path)?.keyspace(ships.number())?.iter().count());

    // The replica follows beside a writer, and is closed and opened again in between.
    let writer = std::thread::spawn(move || -> Result<()> {
        let buffered = ships.with_durability(Durability::Buffered);
        for number in 0..20_000u32 {
            buffered.insert((number % 15_000).to_be_bytes(), format!("voyage {number}"))?;
        }
        buffered.remove_range(5000u32.to_be_bytes()..6000u32.to_be_bytes())?;
        harbours.insert("christiania", "1892") // durable, so the replica is told of all that was before
    });
    let mut commits = 0;
    while commits < 20_002 {
        let replica = Replica::open(&path)?;
        commits += replica.follow(&original)?;
        let position = replica.position()?.expect("it has been copied");
        original.changes(&position)?.wait(Duration::from_millis(100))?;
    }
    writer.join().expect("it does not panic")?;

    let replica = Replica::open(&path)?;
    for keyspace in original.snapshot().keyspaces() {
        let copy = replica.keyspace(keyspace.number())?;
        let one: Vec<_> = keyspace.iter().collect::<Result<_>>()?;
        let two: Vec<_> = copy.iter().collect::<Result<_>>()?;
        let is_equal = one == two;
        println!(
            "{}: {} records, {}",
            keyspace.name(),
            copy.iter().count(),
            if is_equal { "the same" } else { "others" }
        );
        assert!(is_equal);
    }
    println!("after {commits} commits, up to {}", replica.position()?.expect("it follows"));
    Ok(())
}
