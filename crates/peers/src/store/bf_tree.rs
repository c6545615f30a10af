//! Bf-Tree, Microsoft Research's B-tree with mini-pages.
//!
//! Version 0.5 has no commit, no write that survives a crash (its log is written and not synced, and its recovery from the
//! log is not finished), and it finds its pages again only from a snapshot, which is a second copy of the database. So this
//! adapter refuses durable writes, keeps a database over a restart by a snapshot taken when it is closed, and refuses to open
//! one that was not closed.
//!
//! Invariants:
//! 1. `closed` names the snapshot to open, and is there only while the database is closed;
//! 2. a batch is not atomic: Bf-Tree has nothing of the kind.

use super::doing;
use arena::{Change, Engine, Failed, Level, Result, Session, Settings};
use bf_tree::{BfTree, Config, LeafInsertResult, LeafReadResult, ScanReturnField, StorageBackend};
use std::fs;
use std::path::PathBuf;

pub(super) fn open(settings: &Settings) -> Result<Box<dyn Engine>> {
    if settings.level == Level::Durable {
        return Err(Failed::new("open", "Bf-Tree 0.5 has no durable write: its log is never synced"));
    }
    // A power of two, and half of the memory at most: snapshots, inner nodes and the page cache need the rest.
    let buffer = 1usize << (settings.memory / 2).max(2 << 20).ilog2();
    let closed = settings.dir.join("closed");
    if let Ok(snapshot) = fs::read_to_string(&closed) {
        let (snapshot, file) = (settings.dir.join(&snapshot), snapshot);
        fs::remove_file(&closed).map_err(doing("open"))?;
        let tree = BfTree::new_from_cpr_snapshot(&snapshot, true, None, Some(buffer), None)
            .map_err(|error| Failed::new("open the snapshot", format!("{error:?}")))?;
        return Ok(Box::new(Bf { tree, settings: settings.clone(), file }));
    }
    let file = "tree-0";
    let path = settings.dir.join(file);
    if path.exists() {
        let why = "it was not closed in good order, and Bf-Tree 0.5 cannot recover";
        return Err(Failed::new("open", why));
    }
    let record = settings.key_len + settings.value_len;
    let mut config = Config::new(&path, buffer);
    config
        .storage_backend(StorageBackend::Std)
        .use_snapshot(true)
        .cb_max_key_len(settings.key_len)
        .cb_min_record_size((record / 2).max(4))
        .cb_max_record_size(record.max(512).next_multiple_of(64));
    if record > 1500 {
        config.leaf_page_size(4 * record.next_multiple_of(4096));
    }
    let tree =
        BfTree::with_config(config, None).map_err(|error| Failed::new("create", format!("{error:?}")))?;
    Ok(Box::new(Bf { tree, settings: settings.clone(), file: file.into() }))
}

struct Bf {
    tree: BfTree,
    settings: Settings,
    /// The file of the pages, in the directory.
    file: String,
}

impl Engine for Bf {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Hand { tree: &self.tree, buffer: vec![0; 64 << 10] }))
    }

    /// There is nothing to be asked for.
    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        let number: u64 = self.file.rsplit('-').next().and_then(|text| text.parse().ok()).unwrap_or(0);
        let next = format!("tree-{}", number + 1);
        let in_dir = |name: &str| -> PathBuf { self.settings.dir.join(name) };
        self.tree.cpr_snapshot(in_dir(&next));
        fs::remove_file(in_dir(&self.file)).map_err(doing("close"))?;
        fs::write(in_dir("closed"), next).map_err(doing("close"))
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

    fn scan(
        &mut self,
        from: &[u8],
        expected: u64,
        show: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
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
