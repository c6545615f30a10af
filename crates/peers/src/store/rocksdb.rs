//! RocksDB.
//!
//! Invariant: what it holds is accounted for in one place. The write buffers are charged to the block cache, index and filter
//! blocks are in it; what no cache knows of, the buffers of compactions, is kept small.

use super::doing;
use arena::{Change, Codec, Disk, Engine, Failed, Kind, Level, Modify, Result, Session, Settings};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, ErrorKind, LruCacheOptions, OptimisticTransactionDB,
    OptimisticTransactionOptions, Options, ReadOptions, WriteBatch, WriteBatchWithTransaction,
    WriteBufferManager, WriteOptions,
};

/// Bytes of a dictionary at most: what RocksDB's manual calls usual.
const DICTIONARY: i32 = 16 << 10;

/// Of zlib, which is not used: RocksDB's default.
const WINDOW_BITS: i32 = -14;

/// Another kind of database for transactions, since it keeps memtables for their validation.
enum Database {
    Plain(DB),
    Transactional(OptimisticTransactionDB),
}

/// Does the same with either.
macro_rules! with {
    ($database:expr, $name:ident => $result:expr) => {
        match $database {
            Database::Plain($name) => $result,
            Database::Transactional($name) => $result,
        }
    };
}

pub(super) fn open(settings: &Settings) -> Result<Box<dyn Engine>> {
    let memory = settings.memory as usize;
    let mut lru = LruCacheOptions::default();
    // Buffered, the page cache has the rest.
    let is_direct = settings.disk == Disk::Best;
    lru.set_capacity(if is_direct { memory / 100 * 60 } else { memory / 4 });
    // Few shards: each has to hold whole index blocks beside its data.
    lru.set_num_shard_bits(4);
    let cache = Cache::new_lru_cache_opts(&lru);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&cache);
    table.set_block_size(4 << 10);
    table.set_format_version(6);
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    let write = (memory / 16).clamp(1 << 20, 64 << 20);
    options.set_write_buffer_size(write);
    options.set_max_write_buffer_number(3);
    options.set_write_buffer_manager(&WriteBufferManager::new_write_buffer_manager_with_cache(
        4 * write,
        false,
        cache.clone(),
    ));
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_optimize_filters_for_hits(true);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    options.increase_parallelism(threads.max(2) as i32);
    options.set_max_subcompactions(threads.max(1) as u32);
    options.set_use_direct_reads(is_direct);
    options.set_use_direct_io_for_flush_and_compaction(is_direct);
    // A buffer of this size for every file that a compaction reads, and there can be twenty of them in each of its threads.
    // Two MiB, as is usual, take more than the limit leaves.
    options.set_compaction_readahead_size((memory / 512).clamp(64 << 10, 2 << 20));
    options.set_bytes_per_sync(1 << 20);
    // Blocks that its log has already, so that a sync need not change the file's length.
    options.set_recycle_log_file_num(4);
    options.set_max_open_files(-1);
    options.set_compression_type(match (settings.values, settings.codec) {
        (Kind::Incompressible, _) => DBCompressionType::None,
        (_, Codec::Lz4) => DBCompressionType::Lz4,
        (_, Codec::Zstd | Codec::Dictionary) => DBCompressionType::Zstd,
    });
    if settings.codec == Codec::Dictionary {
        // As the manual advises. A file is kept in memory until its dictionary is trained, so it is no longer than the limit allows.
        options.set_compression_options(WINDOW_BITS, 3, 0, DICTIONARY);
        options.set_zstd_max_train_bytes(100 * DICTIONARY);
        options.set_target_file_size_base((settings.memory / 16).clamp(4 << 20, 64 << 20));
    }
    let database = if settings.transactions {
        OptimisticTransactionDB::open(&options, &settings.dir).map(Database::Transactional)
    } else {
        DB::open(&options, &settings.dir).map(Database::Plain)
    };
    let database = database.map_err(doing("open"))?;
    let mut write = WriteOptions::default();
    write.set_sync(settings.level == Level::Durable);
    Ok(Box::new(Rocks { database, write }))
}

struct Rocks {
    database: Database,
    write: WriteOptions,
}

impl Engine for Rocks {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(Hand(self)))
    }

    fn sync(&self) -> Result<()> {
        with!(&self.database, database => database.flush_wal(true)).map_err(doing("sync"))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.sync()?;
        with!(&self.database, database => database.cancel_all_background_work(true));
        Ok(())
    }
}

struct Hand<'a>(&'a Rocks);

impl Session for Hand<'_> {
    fn get(&mut self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<()> {
        with!(&self.0.database, database => {
            if let Some(value) = database.get_pinned(key).map_err(doing("get"))? {
                show(&value);
            }
        });
        Ok(())
    }

    fn multi_get(&mut self, keys: &[Vec<u8>], show: &mut dyn FnMut(usize, &[u8])) -> Result<()> {
        let values = with!(&self.0.database, database => database.multi_get(keys));
        for (at, value) in values.into_iter().enumerate() {
            if let Some(value) = value.map_err(doing("multi_get"))? {
                show(at, &value);
            }
        }
        Ok(())
    }

    fn scan(&mut self, from: &[u8], expected: u64, show: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> Result<()> {
        let mut options = ReadOptions::default();
        if expected > 10_000 {
            // A full scan would push everything else out of the cache.
            options.fill_cache(false);
            options.set_readahead_size(2 << 20);
        }
        with!(&self.0.database, database => {
            // Lends what it comes to, where the other kind of iterator copies.
            let mut records = database.raw_iterator_opt(options);
            records.seek(from);
            while let Some((key, value)) = records.item() {
                if !show(key, value) {
                    return Ok(());
                }
                records.next();
            }
            records.status().map_err(doing("scan"))
        })
    }

    fn write(&mut self, changes: &[Change<'_>]) -> Result<()> {
        match &self.0.database {
            Database::Plain(database) => {
                let mut batch = WriteBatch::default();
                fill(&mut batch, changes);
                database.write_opt(batch, &self.0.write)
            }
            Database::Transactional(database) => {
                let mut batch = WriteBatchWithTransaction::<true>::default();
                fill(&mut batch, changes);
                database.write_opt(batch, &self.0.write)
            }
        }
        .map_err(doing("write"))
    }

    fn modify(&mut self, keys: &[Vec<u8>], change: &mut Modify<'_>) -> Result<u64> {
        let Database::Transactional(database) = &self.0.database else {
            return Err(Failed::new("run a transaction", "the database was opened for others"));
        };
        let mut conflicts = 0;
        loop {
            let transaction =
                database.transaction_opt(&self.0.write, &OptimisticTransactionOptions::default());
            for (at, key) in keys.iter().enumerate() {
                // For update: what is merely read takes no part in the validation.
                let found = transaction.get_pinned_for_update(key, true).map_err(doing("get"))?;
                let value = change(at, found.as_deref())?;
                transaction.put(key, value).map_err(doing("put"))?;
            }
            match transaction.commit() {
                Ok(()) => return Ok(conflicts),
                // TryAgain: the memtables that would tell are gone.
                Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::TryAgain) => conflicts += 1,
                Err(error) => return Err(Failed::new("commit", error)),
            }
        }
    }
}

fn fill<const TRANSACTION: bool>(batch: &mut WriteBatchWithTransaction<TRANSACTION>, changes: &[Change<'_>]) {
    for change in changes {
        match *change {
            Change::Put(key, value) => batch.put(key, value),
            Change::Remove(key) => batch.delete(key),
        }
    }
}
