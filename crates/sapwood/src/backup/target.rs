//! Where backups lie: blobs by their names. What the names mean is [`name`](super::name)'s part.

use std::io;

/// Writes the content of a blob, from its beginning to its end.
pub type Content<'c> = dyn FnMut(&mut dyn io::Write) -> io::Result<()> + 'c;

/// A place for backups: blobs by their names, on another disk, on another machine, in an object store.
///
/// Names have at most 80 bytes: lower-case letters, digits and `-`. Blobs of other names are left alone. A target may hold backups of
/// several databases, but only one process may write to it at a time ([`Target::lock`]).
///
/// ```
/// use sapwood::backup::{Content, Target};
/// use std::collections::BTreeMap;
/// use std::io::{Error, ErrorKind, Result};
/// use std::sync::Mutex;
///
/// #[derive(Default)]
/// struct InMemory(Mutex<BTreeMap<String, Vec<u8>>>);
///
/// impl Target for InMemory {
///     fn put(&self, name: &str, content: &mut Content<'_>) -> Result<()> {
///         let mut blob = Vec::new();
///         content(&mut blob)?; // on an error there is no blob
///         self.0.lock().expect("sound").insert(name.to_owned(), blob);
///         Ok(())
///     }
///
///     fn get(&self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<usize> {
///         let blobs = self.0.lock().expect("sound");
///         let blob = blobs.get(name).ok_or(Error::from(ErrorKind::NotFound))?;
///         let rest = blob.get(offset as usize..).unwrap_or_default();
///         let len = rest.len().min(buffer.len());
///         buffer[..len].copy_from_slice(&rest[..len]);
///         Ok(len)
///     }
///
///     fn list(&self) -> Result<Vec<(String, u64)>> {
///         let blobs = self.0.lock().expect("sound");
///         Ok(blobs.iter().map(|(name, blob)| (name.clone(), blob.len() as u64)).collect())
///     }
///
///     fn delete(&self, names: &[String]) -> Result<()> {
///         self.0.lock().expect("sound").retain(|name, _| !names.contains(name));
///         Ok(())
///     }
///
///     fn describe(&self) -> String {
///         "memory".to_owned()
///     }
/// }
///
/// # fn main() -> sapwood::Result<()> {
/// # let dir = tempfile::tempdir().expect("a temporary directory");
/// let db = sapwood::Database::open(dir.path().join("ships.db"))?;
/// db.keyspace("ships")?.insert("fram", "1892")?;
/// let target = InMemory::default();
/// db.backup().run(&target)?;
/// assert_eq!(sapwood::backup::list(&target)?.len(), 1);
/// # Ok(()) }
/// ```
pub trait Target: Send + Sync {
    /// Makes a blob of what `content` writes, or replaces the blob of this name. The blob is whole and durable when [`sync`](Target::sync)
    /// has returned after it, at the latest. If it fails, or the process dies before, there is no blob of this name, or the one that was
    /// there before, or all of it. `content` is called once.
    ///
    /// # Errors
    /// What `content` returns, and the target's own.
    fn put(&self, name: &str, content: &mut Content<'_>) -> io::Result<()>;

    /// Reads bytes of a blob from `offset` on into `buffer`, and returns how many: fewer than it has room for only at the blob's end.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound), and the target's own.
    fn get(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// The names of all blobs, and their lengths in bytes, in any order.
    ///
    /// # Errors
    /// The target's own.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;

    /// Removes blobs. When it returns, none of them comes back. One that is not there is no error.
    ///
    /// # Errors
    /// The target's own; some of them may be gone.
    fn delete(&self, names: &[String]) -> io::Result<()>;

    /// Makes all blobs durable that were put before. The default does nothing: it is for targets that do so when a blob is put.
    ///
    /// # Errors
    /// The target's own. Blobs that were put since the last call may be gone.
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    /// Where it is, for messages: a path or an address.
    fn describe(&self) -> String;

    /// Keeps others from writing to the target until the result is dropped. The default does nothing: then it is for the user to see
    /// to it that only one process writes at a time.
    ///
    /// # Errors
    /// Another process writes to it ([`ResourceBusy`](io::ErrorKind::ResourceBusy)).
    fn lock(&self) -> io::Result<Box<dyn Send>> {
        Ok(Box::new(()))
    }
}
