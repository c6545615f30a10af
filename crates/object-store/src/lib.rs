//! Backups of [Sapwood](sapwood) in an object store, by the crate [`object_store`]: S3, Google Cloud Storage, Azure, a local
//! directory, memory.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! use object_store::memory::InMemory;
//! use sapwood::backup::{self, Restore};
//! use sapwood_object_store::ObjectStoreTarget;
//! use std::sync::Arc;
//!
//! // With the feature `aws`: object_store::aws::AmazonS3Builder::from_env().with_bucket_name("backups").build()?
//! let store = Arc::new(InMemory::new());
//! let target = ObjectStoreTarget::new(store, "ships")?;
//!
//! let db = sapwood::Database::open(dir.path().join("ships.db"))?;
//! db.keyspace("ships")?.insert("fram", "1892")?;
//! db.backup().run(&target)?;
//! Restore::from(&target).into_directory(dir.path().join("copy.db"))?;
//! # Ok(()) }
//! ```
//!
//! Features `aws`, `azure`, `gcp` and `http` compile those stores; none is on unless it is asked for.
//!
//! Invariants:
//! 1. A blob is an object. It is there when it is whole: objects of up to a part are put at once, longer ones by a multipart upload
//!    that is completed at the end, or aborted.
//! 2. Memory: one part. It has 8 MiB; behind the first 62 GiB of an object about as much as a 200th of what lies behind these, up to 2 GiB.
//!    A part is one request: for the longest ones `object_store`'s timeout (30 s, unless `ClientOptions::with_timeout` says otherwise) asks for
//!    72 MB/s. Set a longer one if there are such objects: the archive of a long log can be one.
//! 3. A backup is as durable, when it returns, as what the store has put. S3 and its like keep what they have confirmed. A local directory
//!    needs `LocalFileSystem::with_fsync(true)`: without it the power may fail before the backup is on the disk. What was removed may be there
//!    again after a power failure in any case, in part: remove it again. [`sapwood::backup::Directory`] is better for a local directory: it syncs all of that.
//!
//! Object stores have no locks: it is for the user to see to it that one process at a time takes or removes backups under a prefix.
//! A multipart upload that is killed leaves parts that cost space until the store's rule for such uploads removes them.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};
use sapwood::backup::{Content, Target};
use std::io;
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};

/// Bytes of a part of an upload: at least the 5 MiB that S3 asks for, and so many that a segment (64 MiB) needs few.
const PART: usize = 8 << 20;
/// Parts of this length (count): 62 GiB. Some stores want all parts but the last to be equal, and S3 and others take 10,000 parts. So the parts
/// of longer objects, as a version or the archive of a log can be, get longer at the end only.
const EQUAL_PARTS: usize = 8000;
/// Behind these so many parts (count) have the same length, and then as many have twice that.
const LONGER_PARTS: usize = 200;
/// The longest part, in bytes: below the 5 GiB that S3 takes. 10,000 parts have 1.6 TiB. It is one request, which has a time limit.
const PART_MAX: usize = 2 << 30;

/// The length of the part behind so many others, in bytes.
fn part_len(parts: usize) -> usize {
    let doublings = parts.checked_sub(EQUAL_PARTS).map_or(0, |behind| behind / LONGER_PARTS + 1);
    (0..doublings).fold(PART, |len, _| (len * 2).min(PART_MAX))
}

/// Backups under a prefix of an object store.
///
/// It waits for the store with a runtime of its own, so it must not be used in a task of an asynchronous runtime: use
/// `tokio::task::spawn_blocking` there. It may be made and dropped in a task.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use object_store::local::LocalFileSystem;
/// use sapwood_object_store::ObjectStoreTarget;
///
/// let store = std::sync::Arc::new(LocalFileSystem::new_with_prefix(dir.path())?.with_fsync(true));
/// let target = ObjectStoreTarget::new(store, "backups/ships")?;
/// assert!(sapwood::backup::list(&target)?.is_empty());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct ObjectStoreTarget {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    /// There until this is dropped.
    runtime: Option<Runtime>,
}

impl ObjectStoreTarget {
    /// A target for the objects below `prefix`, whose parts are divided by `/`.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = std::sync::Arc::new(object_store::memory::InMemory::new());
    /// let target = sapwood_object_store::ObjectStoreTarget::new(store, "ships")?;
    /// assert!(sapwood_object_store::ObjectStoreTarget::new(std::sync::Arc::new(object_store::memory::InMemory::new()), "a//b").is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if the prefix is no path; the system's error if there is no runtime to be had.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: &str) -> io::Result<Self> {
        let prefix =
            Path::parse(prefix).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { store, prefix, runtime: Some(runtime) })
    }

    fn wait<T>(&self, request: impl Future<Output = T>) -> T {
        let runtime = self.runtime.as_ref().expect("it is there until this is dropped");
        runtime.block_on(request)
    }

    fn path(&self, name: &str) -> Path {
        self.prefix.clone().join(name)
    }
}

impl Drop for ObjectStoreTarget {
    fn drop(&mut self) {
        // A runtime that is dropped waits for its threads, which panics in a task. They have nothing to do any more: each request was waited for.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// An error of the store, with the kind that comes nearest.
fn io_error(error: object_store::Error) -> io::Error {
    let kind = match &error {
        object_store::Error::NotFound { .. } => io::ErrorKind::NotFound,
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            io::ErrorKind::PermissionDenied
        }
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// What is written of an object.
struct Upload<'t> {
    target: &'t ObjectStoreTarget,
    path: Path,
    part: Vec<u8>,
    /// Parts that were put (count).
    count: usize,
    /// Begun with the first whole part.
    parts: Option<Box<dyn MultipartUpload>>,
}

impl Upload<'_> {
    fn put_part(&mut self) -> io::Result<()> {
        let store = &self.target.store;
        let part = PutPayload::from(Bytes::from(std::mem::take(&mut self.part)));
        let put = async {
            let parts = match &mut self.parts {
                Some(parts) => parts,
                none => none.insert(store.put_multipart(&self.path).await?),
            };
            parts.put_part(part).await
        };
        self.count += 1;
        self.target.wait(put).map_err(io_error)
    }

    fn complete(mut self) -> io::Result<()> {
        if self.parts.is_some() && !self.part.is_empty() {
            self.put_part()?;
        }
        let store = &self.target.store;
        let part = std::mem::take(&mut self.part);
        let completed = self.target.wait(async {
            match &mut self.parts {
                Some(parts) => parts.complete().await,
                None => store.put(&self.path, PutPayload::from(Bytes::from(part))).await,
            }
        });
        completed.map_err(io_error)?;
        self.parts = None;
        Ok(())
    }
}

impl io::Write for Upload<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let len = part_len(self.count);
        let taken = data.len().min(len - self.part.len());
        self.part.extend_from_slice(&data[..taken]);
        if self.part.len() == len {
            self.put_part()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        if let Some(parts) = &mut self.parts {
            // Best effort: what is left costs space, and is no object.
            let _ = self.target.wait(parts.abort());
        }
    }
}

impl Target for ObjectStoreTarget {
    fn put(&self, name: &str, content: &mut Content<'_>) -> io::Result<()> {
        let mut upload =
            Upload { target: self, path: self.path(name), part: Vec::new(), count: 0, parts: None };
        content(&mut upload)?;
        upload.complete()
    }

    fn get(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let path = self.path(name);
        let read = self.wait(async {
            // Stores differ in what they answer to a range that begins at the end.
            let len = self.store.head(&path).await?.size;
            let end = len.min(offset.saturating_add(buffer.len() as u64));
            if offset >= end { Ok(Bytes::new()) } else { self.store.get_range(&path, offset..end).await }
        });
        let bytes = read.map_err(io_error)?;
        let Some(room) = buffer.get_mut(..bytes.len()) else {
            return Err(io::Error::other("the store returned more than it was asked for"));
        };
        room.copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let objects = self.wait(self.store.list(Some(&self.prefix)).try_collect::<Vec<_>>());
        let objects = objects.map_err(io_error)?;
        let of_prefix = objects.into_iter().filter_map(|object| {
            let mut below = object.location.prefix_match(&self.prefix)?;
            let name = below.next()?.as_ref().to_owned();
            // Objects further down are none of ours.
            below.next().is_none().then_some((name, object.size))
        });
        Ok(of_prefix.collect())
    }

    fn delete(&self, names: &[String]) -> io::Result<()> {
        let paths: Vec<_> = names.iter().map(|name| Ok(self.path(name))).collect();
        let deleted = self.store.delete_stream(stream::iter(paths).boxed());
        self.wait(deleted.collect::<Vec<_>>()).into_iter().try_for_each(|deleted| match deleted {
            Ok(_) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(io_error(error)),
        })
    }

    fn describe(&self) -> String {
        format!("{}/{}", self.store, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With parts of 8 MiB an object ended at 78 GiB.
    #[test]
    fn a_long_object_has_no_more_parts_than_a_store_takes() {
        let bytes: u64 = (0..10_000).map(|parts| part_len(parts) as u64).sum();
        assert!(bytes > 1600 << 30, "{bytes}");
        assert!((0..EQUAL_PARTS).all(|parts| part_len(parts) == PART));
        assert_eq!((part_len(EQUAL_PARTS), part_len(EQUAL_PARTS + LONGER_PARTS)), (2 * PART, 4 * PART));
        assert_eq!(part_len(10_000), PART_MAX);
    }
}
