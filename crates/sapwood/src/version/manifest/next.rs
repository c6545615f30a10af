//! The next manifest: a checkpoint of a version, written in parts, followed by the edits made since. It
//! becomes valid when `CURRENT` names it.
//!
//! ```text
//! manifest-N      checkpoint │ edits … │ edits since ──────────┐          counts until then
//! manifest-N+1                        begin ─ parts ─▶ checkpoint │ the same edits ─▶ CURRENT
//! ```
//! Invariants:
//! 1. Nothing depends on it until `CURRENT` names it. If it is given up its file is removed, or is a leftover
//!    that is removed when the database is opened. If the write of `CURRENT` fails, this manifest may be the
//!    valid one, and no other begins with its number ([`Manifest`](super::Manifest)).
//! 2. When `CURRENT` names it, it has all edits of the manifest before, durably.

use super::format::FileHeader;
use super::replay::read_record;
use super::{Output, file_name};
use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::source::{OpenFile, Window};
use crate::version::Version;
use crate::version::checkpoint::Checkpoint;
use crate::version::current::Current;
use psync::{Access, Volume};
use std::iter::Peekable;
use std::sync::Arc;

/// See the module.
pub(super) struct NextManifest {
    output: Output,
    /// Epoch of the version that the checkpoint describes.
    epoch: u64,
    rest: Peekable<Checkpoint>,
    checkpoint_len: u64,
    /// Offset in the valid manifest of the first later edit that was not copied yet.
    since: u64,
    // Declared last: removed after the file is closed.
    unless_kept: UnlessKept,
}

/// Removes a file when dropped, as long as `name` is set: nothing depends on the file.
struct UnlessKept {
    volume: Arc<dyn Volume>,
    name: Option<String>,
}

impl Drop for UnlessKept {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            // Best effort: a leftover is removed when the database is opened.
            let _ = self.volume.remove(&name);
        }
    }
}

impl NextManifest {
    /// Begins manifest number `current.manifest`. `since`: length of the valid manifest.
    pub fn begin(
        volume: Arc<dyn Volume>,
        (current, encryption): (Current, &Encryption),
        version: &Version,
        since: u64,
    ) -> Result<Self> {
        let access = Access { create: true, ..Access::default() };
        let output = Output::open(Arc::clone(&volume), (current, encryption.clone()), access, 0)?;
        let unless_kept = UnlessKept { volume, name: Some(file_name(current.manifest)) };
        let (epoch, rest) = (version.epoch, Checkpoint::of(version).peekable());
        let mut next = Self { output, epoch, rest, checkpoint_len: 0, since, unless_kept };
        next.output.volume.resize(next.output.file, 0)?;
        let header = FileHeader::of(&next.output.current, epoch).encode();
        next.output.write(&header)?;
        Ok(next)
    }

    /// Writes about `bytes` bytes more, durably: of the checkpoint, then of the later edits in the old
    /// manifest, if there is one. Returns whether it is complete.
    pub fn go_on(&mut self, bytes: u64, old: Option<&Output>) -> Result<bool> {
        let end = self.output.len.saturating_add(bytes);
        while self.output.len < end
            && let Some(edit) = self.rest.next()
        {
            let goes_on = self.rest.peek().is_some();
            self.output.put(self.epoch, goes_on, &edit)?;
            if !goes_on {
                self.checkpoint_len = self.output.len;
            }
        }
        let is_whole = self.rest.peek().is_none();
        let has_all = match old {
            Some(old) if is_whole => self.copy_since(old, end)?,
            _ => is_whole,
        };
        // Synced now, so that little is left to sync at the end.
        self.output.sync()?;
        Ok(has_all)
    }

    fn copy_since(&mut self, old: &Output, end: u64) -> Result<bool> {
        let name = file_name(old.current.manifest);
        let mut window = Window::new(OpenFile { volume: &*old.volume, file: old.file, len: old.len });
        while self.since < old.len && self.output.len < end {
            let at = self.since;
            let damage =
                |found: &str| Error::corrupt(&name, at, "an edit that was written", "a whole edit", found);
            let record = read_record(&mut window, old.of(), at)?.ok_or_else(|| damage("none"))?;
            let edit = record.edit.map_err(|section| damage(&format!("a bad {section}")))?;
            self.output.put(record.epoch, false, &edit)?;
            self.since += record.len;
        }
        Ok(self.since == old.len)
    }

    /// Makes this manifest, which is complete, the valid one. Returns its file, and the length of its
    /// checkpoint.
    pub fn replace(self) -> Result<(Output, u64)> {
        let Self { output, checkpoint_len, mut unless_kept, .. } = self;
        // Other files have new names in it too, and no later sync would tell of this failure.
        output.volume.sync_directory().map_err(Error::undecided)?;
        // Once `CURRENT` is written this manifest may be valid, so its file stays; unless that was refused, since
        // then nothing has changed.
        let name = unless_kept.name.take();
        let stored = output.current.store(&*output.volume);
        if stored.as_ref().is_err_and(Error::is_refusal) {
            unless_kept.name = name;
        }
        stored.map(|()| (output, checkpoint_len))
    }

    pub fn bytes_written(&self) -> u64 {
        self.output.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database_id::DatabaseId;
    use crate::storage::mapping_table::{Address, NodeLengths, Position};
    use crate::storage::node::NodeId;
    use crate::storage::segment::Segment;
    use crate::storage::slots::Slots;
    use crate::version::current;
    use crate::version::edit::Edit;
    use crate::version::manifest::{Manifest, STEP, STEPS_OF_EDIT, replay};
    use psync::{Fault, Filter, OperationKind, Repeat, Simulated};

    const SPAN: u64 = 1 << 30;
    const LEN: u32 = 100;
    const FIRST: Current = Current {
        format: current::FORMAT,
        database: DatabaseId(*b"the right forest"),
        manifest: 1,
        span: SPAN,
        manifest_len: 0,
    };

    /// A manifest, and the versions that it had, as far as `append` was through.
    struct Ground {
        volume: Simulated,
        manifest: Manifest,
        versions: Vec<Version>,
        slots: Arc<Slots>,
        written: u64,
        /// Whether the next one was under way when the last edit came.
        was_beside: bool,
        /// How often there was no space for the next one.
        refused: u64,
    }

    impl Ground {
        fn new(seed: u64) -> Self {
            let volume = Simulated::new(seed);
            let empty = Version::empty(SPAN);
            let manifest =
                Manifest::create(Arc::new(volume.clone()), (FIRST, &Encryption::NONE), &empty).unwrap();
            Self {
                volume,
                manifest,
                versions: vec![empty],
                slots: Arc::default(),
                written: 0,
                was_beside: false,
                refused: 0,
            }
        }

        /// An edit that rewrites some nodes.
        fn edit(&mut self, ids: impl Iterator<Item = u64>) -> Result<()> {
            let at = self.written;
            let address = |index: usize| {
                let position = Position(SPAN + at + index as u64 * u64::from(LEN));
                Address::new(position, NodeLengths::of(LEN as usize, LEN as usize), index as u32)
            };
            let set: Vec<_> = ids.enumerate().map(|(index, id)| (NodeId(id), address(index))).collect();
            let used = at + set.len() as u64 * u64::from(LEN);
            let segments = if at == 0 { vec![(1, self.slots.take(1, 1).start)] } else { Vec::new() };
            let edit =
                Edit { segments, used: vec![(1, used)], open_segment: Some(1), set, ..Edit::default() };
            let mut version = self.versions.last().unwrap().clone();
            let slots = Arc::clone(&self.slots);
            version.apply(&edit, &mut |number, start| Ok(Segment::found(number, start, &slots))).unwrap();
            let epoch = version.epoch;
            self.written = used;
            // What was not acknowledged may be there nevertheless.
            self.versions.push(version.clone());
            self.manifest.append(&edit, epoch)?;
            match self.manifest.go_on_with_next(&version) {
                Err(error) if error.is_disk_full() => self.refused += 1,
                renewed => renewed?,
            }
            Ok(())
        }

        /// A short one: not all of what a checkpoint has is new.
        fn edit_some(&mut self) -> Result<()> {
            self.edit((0..500).map(|id| id * 40))
        }

        /// One whose next manifest is under way.
        fn with_next() -> Self {
            let mut ground = Self::new(1);
            ground.edit(0..20_000).unwrap();
            while ground.manifest.next.is_none() {
                ground.edit_some().unwrap();
            }
            ground
        }

        /// Edits until the manifest was replaced twice.
        fn go_on(&mut self, acknowledged: &mut usize) -> Result<()> {
            self.edit(0..20_000)?;
            for round in 0u64.. {
                *acknowledged = self.versions.len() - 1;
                if self.manifest.current().manifest > 3 {
                    break;
                }
                self.was_beside = self.manifest.next.is_some();
                self.edit((0..500).map(|number| (number * 7919 + round * 31) % 20_000))?;
            }
            Ok(())
        }

        /// Which of the versions it is that an image has.
        fn found(&self, image: &Simulated) -> usize {
            let current = Current::decode(&image.read_file(current::FILE).unwrap(), "").unwrap();
            let replayed = replay(image, (&current, &Encryption::NONE), 1 << 40, &Arc::default()).unwrap();
            let index = replayed.version.epoch as usize;
            let is_as_it_was = replayed.version.table.iter().eq(self.versions[index].table.iter());
            assert!(is_as_it_was, "version {index}");
            index
        }
    }

    #[test]
    fn no_edit_waits_for_more_than_a_part() {
        let mut ground = Ground::new(1);
        ground.edit(0..20_000).unwrap();
        let mut parts = 0;
        while ground.manifest.current().manifest < 4 {
            let number = ground.manifest.current().manifest;
            let before = ground.manifest.bytes_written();
            ground.edit_some().unwrap();
            let written = ground.manifest.bytes_written() - before;
            let edit = ground.manifest.edit_len;
            // An edit of the checkpoint more than requested.
            let most = edit + STEP.max(STEPS_OF_EDIT * edit) + (40 << 10);
            assert!(written <= most, "{written} with one edit, {most} at most");
            parts +=
                u64::from(ground.manifest.current().manifest == number && ground.manifest.next.is_some());
        }
        assert!(parts > 6, "{parts} parts of three checkpoints were written, and the manifest went on");
        assert_eq!(ground.found(&ground.volume.crash()), ground.versions.len() - 1);
    }

    #[test]
    fn the_power_may_go_at_any_time() {
        let (mut beside, mut replaced) = (0, 0);
        for nth in 1.. {
            let mut ground = Ground::new(nth);
            ground.volume.fail_nth(Filter::changes(), nth, Fault::PowerOff, Repeat::Once);
            let mut acknowledged = 0;
            let ended = ground.go_on(&mut acknowledged);
            let found = ground.found(&ground.volume.power_loss(nth));
            assert!(found >= acknowledged && found < ground.versions.len(), "{found} of {acknowledged}");
            beside += u64::from(ground.was_beside);
            replaced += u64::from(ground.manifest.current().manifest > 1);
            if ended.is_ok() {
                break;
            }
        }
        assert!(beside > 20 && replaced > 20, "{beside}, {replaced}");
    }

    #[test]
    fn a_checkpoint_that_finds_the_disk_full_is_given_up_and_begun_again() {
        for nth in 1..100 {
            let mut ground = Ground::new(nth);
            let full = Filter::kinds([OperationKind::Write]).file("manifest-000002");
            ground.volume.fail_nth(full, nth, Fault::NoSpace, Repeat::Once);
            ground.edit(0..20_000).unwrap();
            while ground.manifest.current().manifest < 3 {
                let before = ground.refused;
                let edit = ground.edit_some();
                if edit.is_err() {
                    // It counts by now, and it was an edit of its own that was refused.
                    assert!(ground.manifest.current().manifest == 2 && ground.refused == 0 && nth > 12);
                    return;
                }
                let names = ground.volume.list().unwrap();
                let is_there = |entry: &psync::Entry| entry.name == "manifest-000002";
                let is_left = ground.refused > before && names.iter().any(is_there);
                assert!(!is_left, "{names:?}");
            }
            assert_eq!(ground.found(&ground.volume.crash()), ground.versions.len() - 1);
            assert_eq!((ground.refused, ground.volume.fired()), (1, 1));
        }
        panic!("each write of the second manifest was refused before it counts");
    }

    /// A database that was being opened, while another thread's checkpoint failed so, removed the file that `CURRENT` named.
    #[test]
    fn a_manifest_that_may_be_the_valid_one_is_needed() {
        let mut ground = Ground::with_next();
        let next = ground.manifest.current().manifest + 1;
        // The directory is synced before and after `CURRENT` gets its name.
        ground.volume.fail_nth(OperationKind::SyncDirectory, 2, Fault::Error, Repeat::Once);
        while ground.edit_some().is_ok() {}
        assert_eq!((ground.volume.fired(), ground.manifest.current().manifest), (1, next - 1));
        assert!(
            ground.manifest.next.is_none() && ground.manifest.needs(next) && ground.manifest.needs(next - 1)
        );
        let image = ground.volume.crash();
        let current = Current::decode(&image.read_file(current::FILE).unwrap(), "").unwrap();
        assert_eq!(current.manifest, next);
        ground.found(&image);
    }

    #[test]
    fn closing_gives_up_what_was_begun_and_leaves_nothing() {
        let mut ground = Ground::with_next();
        let version = ground.versions.last().unwrap().clone();
        ground.manifest.seal(&version).unwrap();
        let names: Vec<_> = ground.volume.list().unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(names.iter().filter(|name| name.starts_with("manifest")).count(), 1, "{names:?}");
        assert_eq!(ground.found(&ground.volume.crash()), ground.versions.len() - 1);
    }

    /// While the disk is full nothing can be published, so nothing would complete the next manifest.
    #[test]
    fn an_edit_that_finds_the_disk_full_has_the_space_of_what_was_begun() {
        for repeat in [Repeat::Once, Repeat::Sticky] {
            let mut ground = Ground::with_next();
            let (used, written) = (ground.volume.used(), ground.manifest.bytes_written());
            ground.volume.fail_nth(OperationKind::Write, 1, Fault::NoSpace, repeat);
            let edited = ground.edit_some();
            if repeat == Repeat::Sticky {
                assert!(edited.is_err_and(|error| error.is_disk_full()));
                ground.versions.pop();
            } else {
                edited.unwrap();
            }
            assert!(ground.manifest.next.is_none() && ground.volume.used() < used);
            assert!(ground.manifest.bytes_written() >= written, "what was written stays written");
            ground.volume.clear_faults();
            ground.edit_some().unwrap();
            assert!(ground.manifest.next.is_none(), "not again at once");
            assert_eq!(ground.found(&ground.volume.crash()), ground.versions.len() - 1);
        }
    }

    /// All that it says is in the version as well.
    #[test]
    fn what_cannot_be_read_of_the_old_one_is_not_missed() {
        let mut ground = Ground::with_next();
        let (number, at) = (ground.manifest.current().manifest, ground.manifest.output.len);
        ground.edit_some().unwrap();
        ground.volume.flip_bit(&file_name(number), at + 50, 3).unwrap();
        while ground.manifest.current().manifest == number {
            ground.edit_some().unwrap();
        }
        assert_eq!(ground.found(&ground.volume.crash()), ground.versions.len() - 1);
    }

    /// A thread waited for its turn while another one failed, and does not know of the failure.
    #[test]
    fn after_a_failure_writes_are_refused() {
        let (mut undecided, mut nth) = (0, 0);
        loop {
            nth += 1;
            let mut ground = Ground::new(nth);
            let kinds = [OperationKind::Sync, OperationKind::SyncDirectory, OperationKind::Rename];
            ground.volume.fail_nth(Filter::kinds(kinds), nth, Fault::Error, Repeat::Once);
            let mut acknowledged = 0;
            if ground.go_on(&mut acknowledged).is_ok() {
                if ground.volume.fired() == 0 {
                    break;
                }
                // A part of the next one failed, which was begun again.
                continue;
            }
            let versions = ground.versions.len();
            for _ in 0..3 {
                assert!(ground.edit(0..10).is_err());
                ground.versions.truncate(versions);
            }
            let last = ground.versions.last().unwrap().clone();
            assert!(ground.manifest.seal(&last).is_err());
            let number = ground.manifest.current().manifest;
            let image = ground.volume.crash();
            let current = Current::decode(&image.read_file(current::FILE).unwrap(), "").unwrap();
            undecided += u64::from(current.manifest > number);
            // Also when the manifest is gone.
            ground.manifest = Ground::new(0).manifest;
            for image in [image, ground.volume.crash(), ground.volume.power_loss(nth)] {
                let found = ground.found(&image);
                assert!(found >= acknowledged && found < versions, "{found} of {acknowledged}");
            }
        }
        assert!(nth > 50 && undecided > 0, "{undecided} of {nth}");
    }
}
