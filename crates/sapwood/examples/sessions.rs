//! A session service: sessions by their id, and an index of the sessions of each user, which transactions keep in step with them.
//! Several threads log users in and out at the same time; then the index is compared with the sessions. Both expire half an hour
//! after the login.
//!
//! `cargo run -p sapwood --example sessions`

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::{Database, Durability, Expiry, Keyspace, KeyspaceOptions, Result, Transaction};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

/// Sessions that a user may have at a time.
const SESSIONS_MAX: usize = 3;
/// How long a session lasts.
const LIFE: Duration = Duration::from_secs(30 * 60);
const USERS: u32 = 50;
const THREADS: u64 = 4;
const CALLS: u32 = 2000;
/// How many hours the clock is ahead.
static HOURS: AtomicU64 = AtomicU64::new(0);

struct Sessions {
    db: Database,
    /// Session → user.
    sessions: Keyspace,
    /// "user/session" → nothing.
    by_user: Keyspace,
}

impl Sessions {
    fn open(db: &Database) -> Result<Self> {
        let open = |name| db.keyspace_with(name, KeyspaceOptions::new().expiring());
        Ok(Self { db: db.clone(), sessions: open("sessions")?, by_user: open("sessions by user")? })
    }

    /// Begins a session, and ends the user's first ones if there are too many. Whether there are is read in the same
    /// transaction: two logins at the same time cannot both find room for one.
    fn log_in(&self, user: &str, session: &str) -> Result<()> {
        self.db.transact(|tx| {
            // A session that is lost when the power fails means another login.
            tx.durability(Durability::Buffered);
            let mut found = self.sessions_of(tx, user)?;
            while found.len() >= SESSIONS_MAX {
                self.end(tx, user, &found.remove(0))?;
            }
            let end = Expiry::At(SystemTime::now() + LIFE);
            tx.insert_expiring(&self.sessions, session, user, end)?;
            tx.insert_expiring(&self.by_user, format!("{user}/{session}"), "", end)
        })
    }

    /// Ends a session, if there is one.
    fn log_out(&self, session: &str) -> Result<()> {
        self.db.transact(|tx| match tx.get(&self.sessions, session)? {
            Some(user) => self.end(tx, &String::from_utf8_lossy(&user), session),
            None => Ok(()),
        })
    }

    /// Ends all sessions of a user, durably: none that begins meanwhile is left over.
    fn log_out_everywhere(&self, user: &str) -> Result<()> {
        self.db.transact(|tx| {
            self.sessions_of(tx, user)?.iter().try_for_each(|session| self.end(tx, user, session))
        })
    }

    fn sessions_of(&self, tx: &Transaction, user: &str) -> Result<Vec<String>> {
        let prefix = format!("{user}/");
        let records = tx.prefix(&self.by_user, &prefix);
        records.map(|record| Ok(String::from_utf8_lossy(&record?.0[prefix.len()..]).into_owned())).collect()
    }

    fn end(&self, tx: &mut Transaction, user: &str, session: &str) -> Result<()> {
        tx.remove(&self.sessions, session)?;
        tx.remove(&self.by_user, format!("{user}/{session}"))
    }

    /// Sessions, and entries of the index, as of one moment.
    fn count(&self) -> Result<(usize, usize)> {
        let snapshot = self.db.snapshot();
        let indexed = snapshot.iter(&self.by_user).collect::<Result<Vec<_>>>()?;
        for (entry, _) in &indexed {
            let entry = String::from_utf8_lossy(entry);
            let (user, session) = entry.split_once('/').expect("a user and a session");
            assert!(snapshot.get(&self.sessions, session)?.is_some_and(|of| of == user), "{entry} is wrong");
        }
        Ok((snapshot.iter(&self.sessions).count(), indexed.len()))
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let clock = || SystemTime::now() + Duration::from_secs(3600 * HOURS.load(Relaxed));
    let db = Database::builder().memory(64 << 20).clock(clock).open(dir.path().join("sessions.db"))?;
    let service = Sessions::open(&db)?;
    let work = |thread: u64| -> Result<()> {
        let mut rng = StdRng::seed_from_u64(thread);
        for call in 0..CALLS {
            let user = format!("user {}", rng.random_range(0..USERS));
            match rng.random_range(0..100) {
                0 => service.log_out_everywhere(&user)?,
                1..10 => service.log_out(&format!("session {thread} {}", rng.random_range(0..=call)))?,
                _ => service.log_in(&user, &format!("session {thread} {call}"))?,
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    let (sessions, indexed) = service.count()?;
    println!("{sessions} sessions of {USERS} users, {indexed} entries in the index");
    assert!(sessions == indexed && sessions <= USERS as usize * SESSIONS_MAX);
    HOURS.store(1, Relaxed);
    assert_eq!(service.count()?, (0, 0));
    println!("an hour later none is left");
    Ok(())
}
