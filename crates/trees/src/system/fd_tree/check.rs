//! Verifies an FD-tree: every run in order, and its fences against the run below.

use super::FdTree;
use super::run::RunReader;
use crate::page::run_page::EntryKind;
use crate::{Checked, Error, Result};

impl FdTree {
    pub(super) fn verify(&self) -> Result<Checked> {
        let mut below = None;
        for (level, run) in self.runs.iter().enumerate().rev() {
            let firsts = self.verify_run(level, below.as_deref())?;
            if run.pages != firsts.len() as u64 {
                return Err(Error::broken(format!("level {}: {} pages", level + 1, run.pages)));
            }
            below = Some(firsts);
        }
        if below.unwrap_or_default() != self.fences {
            return Err(Error::broken("the head tree's fences are not the first keys of level 1"));
        }
        let pages: u64 = self.runs.iter().map(|run| run.pages).sum();
        let leaves = self.runs.last().map_or(0, |lowest| lowest.pages);
        let records = self.merged(0..u64::MAX)?.len() as u64 + u64::from(self.find(u64::MAX)?.is_some());
        Ok(Checked { records, leaves, inner: pages - leaves, height: self.runs.len() as u32 + 1 })
    }

    /// Verifies one run against the first keys of the pages of the run below, and returns its own.
    fn verify_run(&self, level: usize, below: Option<&[u64]>) -> Result<Vec<u64>> {
        let run = self.runs[level];
        let broken = |what: String| Err(Error::broken(format!("level {}: {what}", level + 1)));
        let mut firsts = Vec::new();
        let mut last: Option<(u64, bool)> = None;
        let mut fences = Vec::new();
        let mut entries = 0;
        for number in 0..run.pages {
            let mut reader =
                RunReader::new(&self.file, super::run::Run { pages: number + 1, ..run }, number, 1);
            let mut at = 0;
            while let Some(entry) = reader.next()? {
                if at == 0 {
                    firsts.push(if number == 0 { 0 } else { entry.key });
                    if below.is_some() && !entry.is_fence() {
                        return broken(format!("page {number} begins without a fence"));
                    }
                }
                let follows =
                    last.is_none_or(|(key, was_change)| key < entry.key || (key == entry.key && !was_change));
                if !follows {
                    return broken(format!("key {} of page {number} is out of order", entry.key));
                }
                match entry.kind {
                    EntryKind::External => fences.push((entry.key, entry.word)),
                    EntryKind::Internal => {
                        if at > 0 || fences.last().map(|fence| fence.1) != Some(entry.word) {
                            return broken(format!("an internal fence at {at} of page {number}"));
                        }
                    }
                    EntryKind::Filter if below.is_none() => {
                        return broken(format!("a filter for key {} in the lowest run", entry.key));
                    }
                    EntryKind::Record | EntryKind::Filter => {}
                }
                last = Some((entry.key, !entry.is_fence()));
                at += 1;
                entries += 1;
            }
        }
        let expected: Vec<_> = below.into_iter().flatten().copied().zip(0..).collect();
        if fences != expected {
            return broken("its external fences are not the pages of the run below".into());
        }
        if entries != run.entries {
            return broken(format!("{entries} entries, not {}", run.entries));
        }
        Ok(firsts)
    }
}
