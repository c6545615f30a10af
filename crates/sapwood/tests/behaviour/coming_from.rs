//! The lines of docs/coming-from.md, compiled and run. The page may have no other.

use sapwood::backup::{Directory, Restore};
use sapwood::repair::Repair;
use sapwood::{Compression, Database, Durability, EncryptionKey, KeyspaceOptions, Result};
use std::ops::Bound;
use std::time::Duration;

const PAGE: &str = include_str!("../../../../docs/coming-from.md");
const THIS: &str = include_str!("coming_from.rs");

#[test]
fn the_lines_of_the_page_run() -> Result<()> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = &directory.path().join("one");
    drop(Database::open(path)?);
    drop(Database::builder().durability(Durability::Buffered).open(path)?);
    let db = Database::builder().memory(64 << 20).open(path)?;
    let ships = db.keyspace("ships")?;
    let (logs, _old) = (db.keyspace("logs")?, db.keyspace("old")?);

    ships.with_durability(Durability::Buffered).insert("key", "value")?;
    ships.insert("key", "value")?;
    assert!(ships.get("key")?.is_some() && ships.contains("key")?);
    _ = ships.multi_get(["a", "b"])?;
    ships.remove("key")?;
    db.batch().insert(&ships, "a", "1").remove(&ships, "b").commit()?;
    db.batch().insert(&ships, "a", "1").commit()?;
    db.batch().insert(&ships, "a", "1").commit_visible()?.wait()?;
    logs.ingest([("a", "1"), ("b", "2")])?;
    ships.remove_range("a".."c")?;
    assert!(ships.insert_if_absent("key", "value")?.is_none());
    assert!(ships.replace("key", "value")?.is_some());
    assert!(ships.with_durability(Durability::Buffered).replace("key", "value")?.is_some());
    assert!(ships.take("key")?.is_some());
    assert_eq!(ships.compare_and_swap("k", Some("old"), Some("new"))?, Err(None));
    assert!(ships.update("n", |old| Some([old.unwrap_or(b""), b"!"].concat()))?.is_none());
    db.keyspace_with("hits", KeyspaceOptions::new().merge(sapwood::merge::AddU64))?
        .merge("n", 1u64.to_be_bytes())?;
    db.transact(|tx| tx.insert(&ships, "a", "1"))?;
    let photo = [7; 100_000];
    db.large_values("photos")?.insert_from("fram", &photo[..])?;

    assert_eq!(ships.range("key"..).count(), 1);
    assert_eq!(ships.range(..="key").rev().count(), 1);
    assert_eq!(ships.range("a".."c").count() + ships.range("a".."c").rev().count(), 2);
    assert!(ships.range(.."key").next_back().is_some());
    assert!(ships.range((Bound::Excluded("key"), Bound::Unbounded)).next().is_some());
    assert!(ships.range((Bound::Excluded("n"), Bound::Unbounded)).next().is_none());
    assert_eq!(ships.prefix("be").count() + ships.range("key"..).take(10).count(), 1);
    assert_eq!(ships.iter().rev().count(), 2);
    assert!(ships.cursor().seek("key")?.is_some() && ships.cursor().seek_for_prev("key")?.is_some());
    assert!(ships.first()?.is_some() && ships.last()?.is_some());
    assert_eq!((ships.count(..)?, ships.len_estimate()), (2, 2));
    drop(db.snapshot());

    let mut tx = db.transaction()?;
    tx.insert(&ships, "key", "value")?;
    let mark = tx.savepoint();
    tx.roll_back_to(mark)?;
    tx.release(mark)?;
    tx.durability(Durability::None);
    tx.commit()?;

    _ = db.keyspace_with("cache", KeyspaceOptions::new().time_to_live(Duration::from_secs(60)))?;
    db.keyspace_with("logs", KeyspaceOptions::new().compression(Compression::ZstdDictionary { level: 3 }))?;
    assert!(ships.pop_first()?.is_some() && ships.pop_last()?.is_some());
    db.sync()?;
    db.flush()?;
    db.compact()?;
    db.check()?;
    let (backups, copy) = (directory.path().join("backups"), directory.path().join("copy"));
    db.backup().run(&Directory::open(&backups)?)?;
    Restore::from(&Directory::open(&backups)?).into_directory(&copy)?;
    {
        let path = &copy;
        let kept = Database::builder().keep_changes(1 << 30);
        let db = kept.open(path)?;
        let (_, position) = db.snapshot_for_changes()?;
        assert_eq!(db.changes(&position)?.count(), 0);
        let db = Database::builder().follow(true).open(path)?;
        db.refresh()?;
        assert_eq!(db.keyspaces().len(), 6);
    }
    let (broken, repaired) = (copy, directory.path().join("repaired"));
    Repair::of(&broken).into_directory(&repaired)?;
    assert!(broken.exists() && repaired.exists());
    {
        let path = &directory.path().join("encrypted");
        let (key, new_key) = (EncryptionKey::generate()?, EncryptionKey::generate()?);
        let db = Database::builder().encryption_key(key).open(path)?;
        db.change_encryption_key(&new_key)?;
    }
    ships.clear()?;
    db.drop_keyspace("old")?;
    db.rename_keyspace("ships", "vessels")?;
    Ok(())
}

fn without_space(text: &str) -> String {
    text.split_whitespace().collect()
}

/// What stands in backquotes in the last column of a row.
fn lines(row: &str) -> impl Iterator<Item = String> {
    let row = row.trim_end().trim_end_matches('|').replace("\\|", "¦");
    let last = row.rsplit('|').next().unwrap_or_default().replace('¦', "|");
    last.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>().into_iter()
}

#[test]
fn the_page_has_no_line_that_does_not_run() {
    let run = without_space(&THIS[..THIS.find("fn without_space").expect("it is there")]);
    let rows = PAGE.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    let found: Vec<String> = rows.flat_map(lines).filter(|line| line != ".await").collect();
    assert!(found.len() > 80, "{} lines are found", found.len());
    for line in found {
        assert!(run.contains(&without_space(&line)), "{line} is not run");
    }
}
