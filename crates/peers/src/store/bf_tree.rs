//! Bf-Tree, Microsoft Research's B-tree with mini-pages.
//!
//! Version 0.5 has no commit, no write that survives a crash (its log is written and not synced, and its recovery from the
//! log is not finished), and it finds its pages again only from a snapshot, a second copy of the database; with 0.5.7 our
//! model test saw removed records come back after a few such restarts. So this adapter races what works: it refuses durable
//! writes, and a database that was closed stays closed.
//!
//! Invariant: a batch is not atomic, since Bf-Tree has nothing of the kind; only the arena's loads and removals use batches.

use arena::{Change, Disk, Engine, Failed, Level, Result, Session, Settings};
use bf_tree::{BfTree, Config, LeafInsertResult, LeafReadResult, ScanReturnField, StorageBackend};

pub(super) fn open(settings: &Settings) -> Result<Box<dyn Engine>> {
    if settings.level == Level::Durable {
        return Err(Failed::new("open", "Bf-Tree 0.5 has no durable write: its log is never synced"));
    }
    let path = settings.dir.join("tree");
    if path.exists() {
        return Err(Failed::new("open", "Bf-Tree 0.5 cannot open a database again without a snapshot"));
    }
    // A power of two, and half of the memory at most: inner nodes and the page cache need the rest.
    let buffer = 1usize << (settings.memory / 2).max(2 << 20).ilog2();
    let record = settings.key_len + settings.value_len;
    let mut config = Config::new(&path, buffer);
    config
        .storage_backend(match settings.disk {
            #[cfg(target_os = "linux")]
            Disk::Second => StorageBackend::StdDirect,
            _ => StorageBackend::Std,
        })
        .cb_max_key_len(settings.key_len)
        // What a removal leaves behind has no value.
        .cb_min_record_size(settings.key_len)
        .cb_max_record_size(record.max(512).next_multiple_of(64));
    if record > 1500 {
        config.leaf_page_size(4 * record.next_multiple_of(4096));
    }
    let tree =
        BfTree::with_config(config, None).map_err(|error| Failed::new("create", format!("{error:?}")))?;
    Ok(Box::new(Bf(tree)))
}

struct Bf(BfTree);

impl Engine for Bf {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Hand { tree: &self.0, buffer: vec![0; 64 << 10] }))
    }

    /// There is nothing to be asked for.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }

    fn reopens(&self) -> bool {
        false
    }
}

struct Hand<'a> {
    tree: &'a BfTree,
    buffer: Vec<u8>,
}

impl Session for Hand<'_> {
    fn get(&mut self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<()> {
        match self.tree.read(key, &mut self.buffer) {
            LeafReadResult::Found(len) => {
                show(&self.buffer[..len as usize]);
                Ok(())
            }
            LeafReadResult::Deleted | LeafReadResult::NotFound => Ok(()),
            LeafReadResult::InvalidKey => Err(Failed::new("get", "it refuses the key")),
        }
    }

    fn scan(&mut self, from: &[u8], expected: u64, show: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let count = expected.min(u64::MAX >> 1) as usize;
        let mut records = self
            .tree
            .scan_with_count(from, count, ScanReturnField::KeyAndValue)
            .map_err(|error| Failed::new("scan", format!("{error:?}")))?;
        while let Some((key, value)) = records.next(&mut self.buffer) {
            if !show(&self.buffer[..key], &self.buffer[key..key + value]) {
                break;
            }
        }
        Ok(())
    }

    fn write(&mut self, changes: &[Change<'_>]) -> Result<()> {
        for change in changes {
            match *change {
                Change::Put(key, value) => match self.tree.insert(key, value) {
                    LeafInsertResult::Success => {}
                    LeafInsertResult::InvalidKV(reason) => return Err(Failed::new("insert", reason)),
                },
                Change::Remove(key) => self.tree.delete(key),
            }
        }
        Ok(())
    }
}
