//! Verifies an LSM-tree: every run in order, no filter that denies what is there, and no tombstone in the last run.

use super::LsmTree;
use super::run::Level;
use crate::page::{Change, Key};
use crate::{Checked, Error, Result};

impl LsmTree {
    pub(super) fn verify(&self) -> Result<Checked> {
        let mut checked = Checked { height: self.levels.len() as u32 + 1, ..Checked::default() };
        for (at, level) in self.levels.iter().enumerate() {
            let is_last = at + 1 == self.levels.len();
            self.verify_run(level, is_last)
                .and_then(|blocks| {
                    checked.leaves += blocks;
                    checked.inner += level.tops.len() as u64;
                    let pages = blocks + level.tops.len() as u64;
                    if pages == level.run.pages { Ok(()) } else { Err(format!("{pages} pages").into()) }
                })
                .map_err(|why| match why {
                    Broken::Error(error) => error,
                    Broken::Told(what) => Error::broken(format!("run of level {}: {what}", at + 1)),
                })?;
        }
        checked.records = self.merged(0..u64::MAX)?.len() as u64 + u64::from(self.find(u64::MAX)?.is_some());
        Ok(checked)
    }

    /// Verifies a run; its blocks.
    fn verify_run(&self, level: &Level, is_last: bool) -> std::result::Result<u64, Broken> {
        let (run, file) = (level.run, &self.file);
        let (mut blocks, mut entries, mut last): (u64, u64, Option<Key>) = (0, 0, None);
        for (part, top) in (0..).zip(&level.tops) {
            let at = run.filter_of(part);
            let filter = run.filter(file, part, &file.read(at..at + 1)?)?;
            if filter.firsts.first() != Some(top) {
                return Err(format!("part {part} begins with {:?}, not {top}", filter.firsts.first()).into());
            }
            for (page, first) in run.blocks_of(part).zip(&filter.firsts) {
                let block = run.block(file, page, &file.read(page..page + 1)?)?;
                blocks += 1;
                if block.entries.first().map(|entry| entry.key) != Some(*first) {
                    return Err(format!("a block of part {part} does not begin with {first}").into());
                }
                for entry in &block.entries {
                    let change = entry.change().ok_or("a fence in a run without fences")?;
                    if last.is_some_and(|last| last >= entry.key) {
                        return Err(format!("key {} is out of order", entry.key).into());
                    }
                    if !filter.filter.may_hold(entry.key) {
                        return Err(format!("the filter of part {part} denies key {}", entry.key).into());
                    }
                    if is_last && change == Change::Remove {
                        return Err(format!("a tombstone of key {} in the last run", entry.key).into());
                    }
                    last = Some(entry.key);
                    entries += 1;
                }
            }
        }
        if entries != run.entries {
            return Err(format!("{entries} entries, not {}", run.entries).into());
        }
        Ok(blocks)
    }
}

/// Why a run is not sound.
enum Broken {
    Error(Error),
    Told(String),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<String> for Broken {
    fn from(what: String) -> Self {
        Self::Told(what)
    }
}

impl From<&str> for Broken {
    fn from(what: &str) -> Self {
        Self::Told(what.to_owned())
    }
}
