//! The manifest: the log of edits, whose sum is the current version. One record makes a whole flush,
//! collection or rotation of the log happen, atomically.
//!
//! The file begins with a checkpoint (a few edits of one epoch, chained) and grows until another checkpoint
//! is cheaper to keep. The new checkpoint is written to the [`next`] file, a part with each edit, while this
//! file stays valid.
//!
//! Invariants:
//! 1. An edit is durable before the version that it makes is published.
//! 2. After a failed write (a refusal aside) or sync no further edit is accepted, also from threads that
//!    were waiting for their turn: what the file holds is unknown, and perhaps which file is valid.
//! 3. Reading stops at the first record that is not whole. If a whole one lies behind it, the file is
//!    damaged; if not, the last edit was cut off by a power loss before it was acknowledged.

mod format;
mod next;
mod replay;
mod salvage;

pub(crate) use format::EDIT_MAX;
#[cfg(any(fuzzing, test))]
pub(crate) use format::{seal, seal_record};
pub(crate) use replay::{Replayed, decode, is_encrypted, replay, replay_on, replay_until, source_direct};
pub(crate) use salvage::{Salvaged, identify, salvage};

use crate::encryption::Encryption;
use crate::error::{Error, Result};
use crate::log_area::maplet::KeyHash;
use crate::source::FileSource;
use crate::spans::span;
use crate::version::Version;
use crate::version::current::{Current, FILE};
use crate::version::edit::{Edit, NODE_IN_EDIT, RUN_IN_EDIT};
use format::encode_record;
use next::NextManifest;
use psync::{Access, FileId, Volume, Write};
use std::sync::Arc;

/// Bytes of a manifest below which it is not worth a checkpoint. Small in unit tests, so that they see what happens
/// beside a checkpoint.
const CHECKPOINT_MIN: u64 = if cfg!(test) { 64 << 10 } else { 1 << 20 };
/// Bytes of the next checkpoint that are written with each edit, and at least how many times the edit's own
/// length. So the manifest does not become much longer before it is replaced, and no thread waits for a whole
/// checkpoint, which can be a hundredth of the data.
const STEP: u64 = if cfg!(test) { 32 << 10 } else { 2 << 20 };
const STEPS_OF_EDIT: u64 = 4;
/// A file this many times as long as its checkpoint is replaced before the database is closed, since the next opening
/// would read all of it.
const LONG_DUE: u64 = 4;

/// A checkpoint is far too long for a version whose own would have less than this part (1/4).
const SHRUNK: u64 = 4;

/// About the length of a checkpoint of a version. Names of keyspaces and fences of log areas are not counted.
fn estimate(version: &Version) -> u64 {
    let logged = version.logs.totals();
    version.table.count() * NODE_IN_EDIT + logged.runs * RUN_IN_EDIT + logged.changes * KeyHash::LEN as u64
}

pub(crate) fn file_name(number: u64) -> String {
    format!("manifest-{number:06}")
}

/// The number in a manifest's name.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    let number = name.strip_prefix("manifest-")?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// A manifest's file, to which records are appended.
struct Output {
    volume: Arc<dyn Volume>,
    current: Current,
    encryption: Encryption,
    file: FileId,
    len: u64,
    /// Bytes written since it was opened.
    written: u64,
}

impl Output {
    fn open(
        volume: Arc<dyn Volume>,
        (current, encryption): (Current, Encryption),
        access: Access,
        len: u64,
    ) -> Result<Self> {
        let file = volume.open(&file_name(current.manifest), Access { write: true, ..access })?;
        Ok(Self { volume, current, encryption, file, len, written: 0 })
    }

    /// What its records are read and written by.
    fn of(&self) -> (&Current, &Encryption) {
        (&self.current, &self.encryption)
    }

    fn put(&mut self, epoch: u64, chained: bool, edit: &Edit) -> Result<()> {
        let record = encode_record(self.of(), self.len, epoch, chained, edit)?;
        self.write(&record)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.volume.write(&[Write { file: self.file, offset: self.len, data: bytes }])?;
        self.len += bytes.len() as u64;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn sync(&self) -> psync::Result<()> {
        self.volume.sync(self.file)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // Everything that counts is synced; failing to close the file loses nothing.
        let _ = self.volume.close(self.file);
    }
}

/// Appends edits to the manifest.
pub(crate) struct Manifest {
    output: Output,
    /// Length of the checkpoint that the file began with.
    checkpoint_len: u64,
    /// The manifest that is to replace this one, while it is written.
    next: Option<NextManifest>,
    /// Set after a failure that leaves the files' contents unknown.
    failed: Option<Error>,
    /// What the next checkpoint is to have, by the estimate; and whether the last one was far longer, so that another would
    /// be as long again.
    next_estimate: u64,
    is_underestimated: bool,
    /// Length of the file when there was no space for the next one.
    refused_at: u64,
    /// Bytes of the last edit.
    edit_len: u64,
    /// Bytes written to other manifest files since the database was opened.
    before: u64,
}

impl Manifest {
    /// Begins manifest number `current.manifest` with a checkpoint of `version` and makes it the valid one.
    pub fn create(volume: Arc<dyn Volume>, of: (Current, &Encryption), version: &Version) -> Result<Self> {
        let mut next = NextManifest::begin(volume, of, version, 0)?;
        next.go_on(u64::MAX, None)?;
        let (output, checkpoint_len) = next.replace()?;
        Ok(Self::of(output, checkpoint_len))
    }

    /// Continues a manifest that was read to its end.
    pub fn resume(
        volume: Arc<dyn Volume>,
        (current, encryption): (Current, &Encryption),
        replayed: &Replayed,
    ) -> Result<Self> {
        let output = Output::open(volume, (current, encryption.clone()), Access::default(), replayed.len)?;
        Ok(Self::of(output, replayed.checkpoint_len))
    }

    fn of(output: Output, checkpoint_len: u64) -> Self {
        Self {
            output,
            checkpoint_len,
            next: None,
            failed: None,
            next_estimate: 0,
            is_underestimated: false,
            refused_at: 0,
            edit_len: 0,
            before: 0,
        }
    }

    /// Makes an edit durable. `epoch` is that of the version after it. On `DiskFull` nothing happened.
    pub fn append(&mut self, edit: &Edit, epoch: u64) -> Result<()> {
        self.unless_failed(|manifest| match manifest.append_once(edit, epoch) {
            Err(error) if error.is_disk_full() && manifest.has_next() => {
                manifest.give_up_for_space();
                manifest.append_once(edit, epoch)
            }
            appended => appended,
        })
    }

    fn append_once(&mut self, edit: &Edit, epoch: u64) -> Result<()> {
        let output = &mut self.output;
        let before = output.len;
        if let Err(error) = output.put(epoch, false, edit) {
            if error.is_disk_full() && !output.volume.len(output.file).is_ok_and(|len| len <= before) {
                // The record may be there nevertheless. It would count after a crash, while the nodes that it
                // names are about to be overwritten by the next attempt. So it has to go, durably.
                let cut = output.volume.resize(output.file, before).and_then(|()| output.sync());
                cut.map_err(Error::undecided)?;
            }
            return Err(error);
        }
        self.edit_len = output.len - before;
        output.sync().map_err(|error| {
            // It is unknown whether the record is there. What reads the file back reads to where the state is.
            output.len = before;
            Error::undecided(error)
        })
    }

    /// Does `work` unless an earlier failure left the files' contents unknown. A thread that waited for the
    /// manifest while another failed learns of it only here.
    fn unless_failed(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        work(self).inspect_err(|error| {
            if !error.is_refusal() {
                self.failed = Some(error.clone());
            }
        })
    }

    /// Whether the file has outgrown its checkpoint so far that a new one is due.
    fn is_checkpoint_due(&self, version: &Version) -> bool {
        // At twice the length edits are rewritten once more as part of a checkpoint, and outdated ones take
        // no more space than the table itself. After a full disk the file grows by a quarter before another
        // checkpoint is begun.
        let of_now = estimate(version);
        let has_shrunk = self.checkpoint_len / SHRUNK > of_now && !self.is_underestimated;
        let checkpoint_len = if has_shrunk { of_now } else { self.checkpoint_len };
        self.output.len > CHECKPOINT_MIN.max(2 * checkpoint_len).max(self.refused_at / 4 * 5)
    }

    /// Called after the edit that made `version`, the current version. When a new file that begins with a
    /// checkpoint is due, writes it, a part at a time, and switches to it. On an error before the switch the
    /// old file stays valid.
    pub fn go_on_with_next(&mut self, version: &Version) -> Result<()> {
        self.unless_failed(|manifest| {
            if manifest.next.is_none() && manifest.is_checkpoint_due(version) {
                manifest.next = Some(manifest.begin_next(version)?);
            }
            manifest.go_on(version, STEP.max(STEPS_OF_EDIT * manifest.edit_len))
        })
    }

    fn begin_next(&mut self, version: &Version) -> Result<NextManifest> {
        let current = self.output.current;
        let current = Current { manifest: current.manifest + 1, manifest_len: 0, ..current };
        let next = NextManifest::begin(
            Arc::clone(&self.output.volume),
            (current, &self.output.encryption),
            version,
            self.output.len,
        );
        self.next_estimate = estimate(version);
        next.inspect_err(|error| self.note_refusal(error))
    }

    /// Begins another manifest with a checkpoint of the current version, and switches to it.
    pub fn renew(&mut self, version: &Version) -> Result<()> {
        self.unless_failed(|manifest| {
            manifest.give_up_next();
            manifest.next = Some(manifest.begin_next(version)?);
            manifest.go_on(version, u64::MAX)
        })
    }

    /// Writes about `bytes` bytes to the next manifest, if there is one, and switches to it when it is
    /// complete. One that could not go on is given up.
    fn go_on(&mut self, version: &Version, bytes: u64) -> Result<()> {
        let Some(mut next) = self.next.take() else { return Ok(()) };
        span!("checkpoint", bytes);
        let mut went_on = next.go_on(bytes, Some(&self.output));
        if let Err(error) = &went_on
            && !error.is_disk_full()
        {
            // Perhaps it was this file that could not be read; the version has its contents, too.
            tracing::warn!(%error, "the next manifest is begun again");
            self.before += next.bytes_written();
            drop(next);
            next = self.begin_next(version)?;
            went_on = next.go_on(u64::MAX, Some(&self.output));
        }
        let written = next.bytes_written();
        match went_on {
            Ok(true) => self.change_over(next),
            Ok(false) => {
                self.next = Some(next);
                Ok(())
            }
            Err(error) => {
                self.before += written;
                self.note_refusal(&error);
                Err(error)
            }
        }
    }

    fn note_refusal(&mut self, error: &Error) {
        if error.is_refusal() {
            self.refused_at = self.output.len;
        }
    }

    /// Bytes of the valid manifest.
    pub fn len(&self) -> u64 {
        self.output.len
    }

    /// Whether a next manifest is being written.
    pub fn has_next(&self) -> bool {
        self.next.is_some()
    }

    /// Gives up the next manifest for a thread that needs its space, as if the disk had been full.
    pub fn give_up_for_space(&mut self) {
        if self.has_next() {
            self.give_up_next();
            self.refused_at = self.output.len;
        }
    }

    fn give_up_next(&mut self) {
        self.before += self.next.take().map_or(0, |next| next.bytes_written());
    }

    /// Switches to the next manifest, which has everything that this one has.
    fn change_over(&mut self, next: NextManifest) -> Result<()> {
        self.before += next.bytes_written();
        let (output, checkpoint_len) = next.replace().inspect_err(|error| self.note_refusal(error))?;
        let output = std::mem::replace(&mut self.output, output);
        self.before += output.written;
        self.output.written = 0;
        (self.checkpoint_len, self.refused_at) = (checkpoint_len, 0);
        self.is_underestimated = checkpoint_len / SHRUNK > self.next_estimate;
        let (volume, old) = (Arc::clone(&output.volume), file_name(output.current.manifest));
        drop(output);
        if let Err(error) = volume.remove(&old) {
            // Harmless: the next opening removes it.
            tracing::warn!(%error, file = old, "the manifest before was not removed");
        }
        Ok(())
    }

    /// Whether this manifest or the next one is in the file of this number. After a failure both may be valid: the next one is not
    /// under way any more, but `CURRENT` may name it.
    pub fn needs(&self, number: u64) -> bool {
        let current = self.output.current.manifest;
        number == current || (number == current + 1 && (self.has_next() || self.failed.is_some()))
    }

    /// Notes the manifest's length in `CURRENT`, so that from then on every missing byte of it is noticed.
    /// Gives up a checkpoint that was begun, unless it was long due, which is completed: a program that opens
    /// and closes the database often would otherwise never complete one.
    pub fn seal(&mut self, version: &Version) -> Result<()> {
        let is_long_due = self.output.len > LONG_DUE * self.checkpoint_len.max(CHECKPOINT_MIN);
        match self.unless_failed(|it| if is_long_due { it.go_on(version, u64::MAX) } else { Ok(()) }) {
            Err(error) if error.is_refusal() => {}
            changed => changed?,
        }
        self.give_up_next();
        let Output { current, len, ref volume, .. } = self.output;
        // It may have been removed, and it is all that names this manifest.
        let is_missing = || match volume.open(FILE, Access::default()) {
            Err(psync::Error::NotFound { .. }) => true,
            other => {
                other.map(|file| volume.close(file)).ok();
                false
            }
        };
        if current.manifest_len != len || is_missing() {
            let current = Current { manifest_len: len, ..current };
            current.store(&**volume)?;
            self.output.current = current;
        }
        Ok(())
    }

    /// Bytes written since the database was opened.
    pub fn bytes_written(&self) -> u64 {
        self.before + self.output.written + self.next.as_ref().map_or(0, NextManifest::bytes_written)
    }

    /// What `CURRENT` says now.
    #[cfg(test)]
    pub fn current(&self) -> Current {
        self.output.current
    }

    /// What `CURRENT` says now, and what is in the file now, to be decoded ([`decode`]) while others append
    /// to it or replace it.
    pub fn content<'a>(&self, volume: &'a dyn Volume) -> Result<(Current, FileSource<'a>)> {
        let Output { current, len, .. } = self.output;
        Ok((current, source_direct(volume, &current)?.up_to(len)))
    }
}
