//! Power loss at 5,400 seeded points, or more: what was acknowledged as durable is there, no batch is half there, and
//! the database goes on. To replay one: `POWER_LOSS_SEED=<seed> cargo test -p sapwood --test crashes power_loss::`.

use crate::scenario::{self, Workload, open};
use psync::{Fault, Filter, Repeat};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One life of a database: several rounds of work, each ended by a power loss at a random operation of the device.
/// Returns the number of crash points, how many log areas had grown and been emptied before them, and how often the log was stored to.
fn life(seed: u64) -> [u64; 4] {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x5eed);
    let mut volume = scenario::volume(seed);
    let mut workload = Workload::new(seed);
    let (mut points, mut appended, mut cleansed, mut stores) = (0, 0, 0, 0);
    for round in 0..4 {
        let at = if rng.random_bool(0.3) { rng.random_range(1..60) } else { rng.random_range(1..400) };
        volume.fail_nth(Filter::any(), at, Fault::PowerOff, Repeat::Once);
        if let Ok(db) = open(&volume) {
            // Whatever fails, fails because the power is off.
            let done = workload.run(&db, 120);
            let writes = db.stats().writes;
            appended += writes.blocks_appended;
            cleansed += writes.blocks_cleansed;
            let _ = done.and_then(|()| if rng.random_bool(0.3) { db.close() } else { Ok(()) });
        }
        stores += volume.stores();
        // Several things could be found after the same crash; the last one is gone on with.
        for image in 0..3u64 {
            let image_seed = seed.wrapping_mul(1000) + round * 10 + image;
            let found = volume.power_loss(image_seed);
            let story =
                format!("seed {seed}, round {round}, power off at operation {at}, image {image_seed}");
            let db = open(&found).unwrap_or_else(|error| panic!("{story}: {error}"));
            let (number, _) = workload.verify(&db, workload.durable, &story);
            points += 1;
            if image == 2 {
                db.close().unwrap_or_else(|error| panic!("{story}: {error}"));
                workload.resume(number);
                volume = found;
                break;
            }
        }
    }
    [points, appended, cleansed, stores]
}

#[test]
fn nothing_acknowledged_is_lost_and_no_batch_is_half_there() {
    if let Ok(seed) = std::env::var("POWER_LOSS_SEED") {
        life(seed.parse().expect("a number"));
        return;
    }
    let lives = std::env::var("POWER_LOSS_LIVES").map_or(450, |lives| lives.parse().expect("a number"));
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let sum = |a: [u64; 4], b: [u64; 4]| std::array::from_fn(|index| a[index] + b[index]);
    let [points, appended, cleansed, stores] = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                let seeds = (0..lives).filter(move |seed| seed % threads == worker);
                scope.spawn(move || seeds.map(life).fold([0; 4], sum))
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("no worker fails")).fold([0; 4], sum)
    });
    println!(
        "{points} crash points, {appended} log areas grown, {cleansed} blocks cleansed, {stores} stores"
    );
    assert!(stores > lives * 10, "{stores} stores");
    assert!(points >= lives * 12);
    assert!(appended > lives && cleansed > lives, "log areas: {appended} grew, {cleansed} were emptied");
}

/// When only the process dies, everything that was written to the page cache is there.
#[test]
fn the_death_of_the_process_loses_nothing_that_was_written() {
    let mut stores = 0;
    for seed in 0..150 {
        let volume = scenario::volume(seed);
        let mut workload = Workload::new(seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let mut current = volume;
        for round in 0..3 {
            let db = open(&current).expect("opens");
            workload.run(&db, rng.random_range(1..80)).expect("nothing fails");
            stores += current.stores();
            let found = current.crash();
            let story = format!("seed {seed}, round {round}");
            let reopened = open(&found).unwrap_or_else(|error| panic!("{story}: {error}"));
            let (number, _) = workload.verify(&reopened, workload.written, &story);
            reopened.close().expect("closes");
            workload.resume(number);
            current = found;
        }
    }
    assert!(stores > 1000, "{stores} stores");
}

/// With a flush in the background, so that the log has several generations that nobody has synced yet.
#[test]
fn nothing_is_lost_while_a_flush_runs_in_the_background() {
    let mut expiring = 0;
    for seed in 0..40 {
        let volume = scenario::volume(seed);
        let mut workload = Workload::new(seed);
        let (watched, time) = (Arc::clone(&workload.watched), Arc::clone(&workload.time));
        let done = AtomicBool::new(false);
        // Whether it is encrypted, this thread knows.
        let options = scenario::options().background_threads(4);
        let images = std::thread::scope(|scope| {
            scope.spawn(|| {
                let shared: Arc<dyn psync::Volume> = Arc::new(volume.clone());
                let db = options.open_on(shared).expect("opens");
                workload.run(&db, 400).expect("nothing fails");
                done.store(true, Ordering::SeqCst);
                db.close().expect("closes");
            });
            let mut images = Vec::new();
            while !done.load(Ordering::SeqCst) && images.len() < 100 {
                let durable = watched.load(Ordering::SeqCst);
                let image = volume.power_loss(seed * 1000 + images.len() as u64);
                // Its clock has not come further.
                images.push((durable, image, time.load(Ordering::SeqCst)));
                std::thread::yield_now();
            }
            images
        });
        for (index, (durable, image, now)) in images.iter().enumerate() {
            workload.time.store(*now, Ordering::SeqCst);
            let story = format!("seed {seed}, image {index}");
            let db = open(image).unwrap_or_else(|error| panic!("{story}: {error}"));
            let (number, _) = workload.verify(&db, *durable, &story);
            expiring += workload.expiring(number);
        }
    }
    assert!(expiring > 1000, "{expiring} records that expire were compared");
}
