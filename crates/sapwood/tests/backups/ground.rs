//! A random workload on a simulated volume, a hash of everything that a database holds, and a target that is watched.

use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::backup::{Content, Directory, Target};
use sapwood::merge::Append;
use sapwood::{Builder, Compression, Database, Durability, Error, Keyspace, KeyspaceOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

/// Options that make everything happen often: tiny leaves, little memory, flushes within the commits.
pub fn options() -> Builder {
    let builder = Database::builder()
        .compression(sapwood::Compression::None)
        .memory(4 << 20)
        .leaf_len(512)
        .segment_span(1 << 20);
    builder.background_threads(0).clock(|| UNIX_EPOCH + Duration::from_secs(1000))
}

pub fn open(volume: &Simulated) -> sapwood::Result<Database> {
    let volume: Arc<dyn Volume> = Arc::new(volume.clone());
    options().open_on(volume)
}

/// The same, and changes are kept from now on.
pub fn open_kept(volume: &Simulated) -> Database {
    options().keep_changes(64 << 20).open_on(Arc::new(volume.clone())).expect("opens")
}

pub fn directory(volume: &Simulated) -> Directory {
    Directory::on(Arc::new(volume.clone()))
}

/// A hash of all records of all keyspaces but those of large values, as a snapshot sees them, and how many there are.
pub fn hash(db: &Database) -> (u64, usize) {
    let (mut hasher, mut count) = (DefaultHasher::new(), 0);
    let snapshot = db.snapshot();
    for name in db.keyspaces() {
        name.hash(&mut hasher);
        let keyspace = match db.keyspace(&name) {
            Err(Error::LargeValues { .. }) => continue,
            keyspace => keyspace.expect("it is there"),
        };
        for item in snapshot.iter(&keyspace) {
            let (key, value) = item.expect("a record");
            (&key[..], &value[..]).hash(&mut hasher);
            count += 1;
        }
    }
    (hasher.finish(), count)
}

/// Changes of all kinds, by a seed.
pub struct Load {
    rng: StdRng,
    plain: Keyspace,
    merged: Keyspace,
    expiring: Keyspace,
    rows: Keyspace,
    next_row: u32,
    extra: u32,
    /// Whether records are ingested now and then, which no log has.
    pub ingests: bool,
}

impl Load {
    pub fn new(db: &Database, seed: u64) -> sapwood::Result<Self> {
        let zstd = KeyspaceOptions::new().compression(Compression::Zstd { level: 3 });
        let rows = db.keyspace_with("rows", zstd)?;
        let last = rows.iter().next_back().transpose()?;
        let next_row =
            last.map_or(0, |(key, _)| u32::from_be_bytes(key[..4].try_into().expect("four bytes")) + 1);
        Ok(Self {
            rng: StdRng::seed_from_u64(seed),
            plain: db.keyspace("plain")?,
            merged: db.keyspace_with(
                "merged",
                KeyspaceOptions::new().merge(Append).compression(Compression::Lz4),
            )?,
            expiring: db
                .keyspace_with("expiring", KeyspaceOptions::new().time_to_live(Duration::from_secs(60)))?,
            rows,
            next_row,
            extra: 0,
            ingests: true,
        })
    }

    fn key(&mut self) -> [u8; 2] {
        self.rng.random_range(0..3000u16).to_be_bytes()
    }

    /// One step.
    pub fn step(&mut self, db: &Database) -> sapwood::Result<()> {
        match self.rng.random_range(0..60) {
            0 => db.flush()?,
            1 => db.sync()?,
            2 if self.rng.random_bool(0.1) => db.compact()?,
            3 => {
                let (from, to) = (self.key(), self.key());
                self.plain.remove_range(from.min(to).to_vec()..from.max(to).to_vec())?;
            }
            4 if self.ingests => {
                let rows = self.next_row..self.next_row + 100;
                self.next_row = rows.end;
                self.rows.ingest(rows.map(|row| (row.to_be_bytes(), [row as u8; 60])))?;
            }
            5 => {
                self.extra += 1;
                db.keyspace(&format!("extra {}", self.extra))?.insert("key", "value")?;
            }
            6 if self.extra > 0 => {
                let name = format!("extra {}", self.rng.random_range(1..=self.extra));
                if db.contains_keyspace(&name) {
                    db.drop_keyspace(&name)?;
                }
            }
            _ => self.commit(db)?,
        }
        Ok(())
    }

    fn commit(&mut self, db: &Database) -> sapwood::Result<()> {
        let mut batch = db.batch();
        for _ in 0..self.rng.random_range(1..60) {
            let (key, byte) = (self.key(), self.rng.random());
            let value = vec![byte; self.rng.random_range(0..200)];
            match self.rng.random_range(0..10) {
                0 => batch.remove(&self.plain, key),
                1 => batch.merge(&self.merged, key, [byte]),
                2 => batch.insert(&self.merged, key, [byte]),
                3 => batch.insert(&self.expiring, key, value),
                _ => batch.insert(&self.plain, key, value),
            };
        }
        let durability = [Durability::None, Durability::Buffered, Durability::Immediate];
        batch.durability(durability[self.rng.random_range(0..3)]).commit()
    }

    pub fn run(&mut self, db: &Database, steps: usize) -> sapwood::Result<()> {
        (0..steps).try_for_each(|_| self.step(db))
    }
}

/// What a watched target calls: with the name of a blob that is written, and how many pieces of it came before.
type Watch<'w> = Box<dyn FnMut(&str, usize) -> io::Result<()> + Send + 'w>;

/// A target that calls a function before each blob and each piece of one; it fails with the function.
pub struct Watched<'w> {
    pub inner: Directory,
    watch: Mutex<Watch<'w>>,
}

impl<'w> Watched<'w> {
    pub fn new(inner: Directory, watch: impl FnMut(&str, usize) -> io::Result<()> + Send + 'w) -> Self {
        Self { inner, watch: Mutex::new(Box::new(watch)) }
    }

    fn call(&self, name: &str, piece: usize) -> io::Result<()> {
        (self.watch.lock().expect("one at a time"))(name, piece)
    }
}

struct WatchedWriter<'o> {
    out: &'o mut dyn io::Write,
    before: &'o mut dyn FnMut() -> io::Result<()>,
}

impl io::Write for WatchedWriter<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        (self.before)()?;
        self.out.write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Target for Watched<'_> {
    fn put(&self, name: &str, content: &mut Content<'_>) -> io::Result<()> {
        self.call(name, 0)?;
        let mut pieces = 0;
        self.inner.put(name, &mut |out| {
            let mut before = || {
                pieces += 1;
                self.call(name, pieces)
            };
            content(&mut WatchedWriter { out, before: &mut before })
        })
    }

    fn get(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.get(name, offset, buffer)
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.inner.list()
    }

    fn delete(&self, names: &[String]) -> io::Result<()> {
        self.inner.delete(names)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn lock(&self) -> io::Result<Box<dyn Send>> {
        self.inner.lock()
    }
}
