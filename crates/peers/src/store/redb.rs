//! redb.

use super::doing;
use arena::{Change, Disk, Engine, Failed, Level, Modify, Result, Session, Settings};
use redb::{
    AccessGuard, Database, Durability, ReadableDatabase, ReadableTable, Table, TableDefinition,
    WriteTransaction,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const RECORDS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("records");

/// Commits without durability hold memory and pages until a durable one comes: after so long, or so many of them.
const PERSIST_EVERY: Duration = Duration::from_secs(1);
const PERSIST_AFTER: u32 = 1000;

pub(super) fn open(settings: &Settings) -> Result<Box<dyn Engine>> {
    // It takes more than its cache, when it writes above all: with 3/8 the limit killed it.
    let cache = match settings.disk {
        Disk::Best => settings.memory / 4,
        Disk::Second => settings.memory / 16,
    } as usize;
    let file = settings.dir.join("records.redb");
    let database = Database::builder().set_cache_size(cache).create(file).map_err(doing("open"))?;
    let transaction = database.begin_write().map_err(doing("begin"))?;
    transaction.open_table(RECORDS).map_err(doing("open the table"))?;
    transaction.commit().map_err(doing("commit"))?;
    let persisted = Mutex::new((Instant::now(), 0));
    Ok(Box::new(Redb { database, level: settings.level, persisted, behind: AtomicBool::new(false) }))
}

struct Redb {
    database: Database,
    level: Level,
    /// When a commit was durable last, and how many came since that were not.
    persisted: Mutex<(Instant, u32)>,
    /// Whether commits came since that were not.
    behind: AtomicBool,
}

impl Redb {
    fn durability(&self) -> Durability {
        let Ok(mut persisted) = self.persisted.lock() else { return Durability::Immediate };
        let due = persisted.0.elapsed() >= PERSIST_EVERY || persisted.1 >= PERSIST_AFTER;
        if self.level == Level::Durable || due {
            *persisted = (Instant::now(), 0);
            Durability::Immediate
        } else {
            persisted.1 += 1;
            Durability::None
        }
    }

    fn begin(&self, durability: Durability) -> Result<WriteTransaction> {
        let mut transaction = self.database.begin_write().map_err(doing("begin"))?;
        transaction.set_durability(durability).map_err(|error| Failed::new("begin", format!("{error:?}")))?;
        Ok(transaction)
    }
}

impl Redb {
    /// Commits what `change` does to the records.
    fn write(&self, change: impl FnOnce(&mut Table<'_, &[u8], &[u8]>) -> Result<()>) -> Result<()> {
        let durability = self.durability();
        let transaction = self.begin(durability)?;
        change(&mut transaction.open_table(RECORDS).map_err(doing("open the table"))?)?;
        transaction.commit().map_err(doing("commit"))?;
        if matches!(durability, Durability::None) {
            self.behind.store(true, Ordering::Release);
        }
        Ok(())
    }
}

impl Engine for Redb {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Hand(self)))
    }

    fn sync(&self) -> Result<()> {
        if self.behind.swap(false, Ordering::AcqRel) {
            self.begin(Durability::Immediate)?.commit().map_err(doing("sync"))?;
        }
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()?;
        self.database.close().map_err(doing("close"))
    }
}

struct Hand<'a>(&'a Redb);

impl Session for Hand<'_> {
    fn get(&mut self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<()> {
        let transaction = self.0.database.begin_read().map_err(doing("begin"))?;
        let table = transaction.open_table(RECORDS).map_err(doing("open the table"))?;
        if let Some(value) = table.get(key).map_err(doing("get"))? {
            show(value.value());
        }
        Ok(())
    }

    /// One transaction for all keys; in their order, so that neighbours find their way in the caches.
    fn multi_get(&mut self, keys: &[Vec<u8>], show: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let transaction = self.0.database.begin_read().map_err(doing("begin"))?;
        let table = transaction.open_table(RECORDS).map_err(doing("open the table"))?;
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|at| &keys[*at]);
        for at in order {
            if let Some(value) = table.get(&*keys[at]).map_err(doing("get"))? {
                show(at, value.value());
            }
        }
        Ok(())
    }

    fn scan(&mut self, from: &[u8], _: u64, show: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let transaction = self.0.database.begin_read().map_err(doing("begin"))?;
        let table = transaction.open_table(RECORDS).map_err(doing("open the table"))?;
        for record in table.range(from..).map_err(doing("scan"))? {
            let (key, value) = record.map_err(doing("scan"))?;
            if !show(key.value(), value.value()) {
                break;
            }
        }
        Ok(())
    }

    fn write(&mut self, changes: &[Change<'_>]) -> Result<()> {
        self.0.write(|table| {
            for change in changes {
                match *change {
                    Change::Put(key, value) => {
                        table.insert(key, value).map_err(doing("insert"))?;
                    }
                    Change::Remove(key) => {
                        table.remove(key).map_err(doing("remove"))?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Of those that write there is one at a time.
    fn modify(&mut self, keys: &[Vec<u8>], change: &mut Modify<'_>) -> Result<u64> {
        self.0.write(|table| {
            for (at, key) in keys.iter().enumerate() {
                let value = {
                    let found = table.get(&**key).map_err(doing("get"))?;
                    change(at, found.as_ref().map(AccessGuard::value))?
                };
                table.insert(&**key, &*value).map_err(doing("insert"))?;
            }
            Ok(())
        })?;
        Ok(0)
    }
}
