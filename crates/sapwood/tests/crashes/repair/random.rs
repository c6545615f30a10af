//! Random damage to random databases.

use super::world::{Counted, Shape, World, repair};
use psync::{Simulated, Volume};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sapwood::Error;

/// Seeds (count) of a longer run.
fn seeds() -> u64 {
    std::env::var("SAPWOOD_REPAIRS").ok().and_then(|text| text.parse().ok()).unwrap_or(6)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Flip,
    Zeros,
    Cut,
    Removed,
}

/// Damages a file, but for the data keys, without which nothing can be saved. Returns what was done.
fn damage(image: &Simulated, rng: &mut StdRng) -> Option<(String, Damage)> {
    let entries = image.list().expect("a list");
    let files: Vec<_> = entries.into_iter().filter(|entry| entry.len > 0 && entry.name != "KEYS").collect();
    let weights = |name: &str| if name == "data" { 12 } else { 2 };
    let mut at = rng.random_range(0..files.iter().map(|entry| weights(&entry.name)).sum::<u32>());
    let entry = files.iter().find(|entry| {
        let weight = weights(&entry.name);
        let is_it = at < weight;
        at = at.saturating_sub(weight);
        is_it
    })?;
    let (name, mut bytes) = (entry.name.clone(), image.read_file(&entry.name).expect("a file"));
    let kind = match rng.random_range(0..20) {
        0 => Damage::Removed,
        1 => Damage::Cut,
        2..6 => Damage::Zeros,
        _ => Damage::Flip,
    };
    let offset = rng.random_range(0..bytes.len());
    match kind {
        Damage::Flip => bytes[offset] ^= 1 << rng.random_range(0..8),
        Damage::Zeros => {
            let from = offset / 512 * 512;
            let to = (from + 512 * rng.random_range(1..9)).min(bytes.len());
            bytes[from..to].fill(0);
        }
        Damage::Cut => bytes.truncate(offset),
        Damage::Removed => {
            image.remove_file(&name).expect("removed");
            return Some((name, kind));
        }
    }
    image.write_file(&name, &bytes).expect("written");
    Some((name, kind))
}

/// Whether nothing may testify to what was lost: the end of a log or of a manifest.
fn is_silent(name: &str, kind: Damage) -> bool {
    kind != Damage::Flip && (name.starts_with("wal-") || name.starts_with("manifest-"))
}

#[test]
fn whatever_is_damaged_all_else_is_saved() {
    let (mut repaired, mut sum, mut of_data) = (0, Counted::default(), Counted::default());
    for seed in 0..seeds() {
        let mut rng = StdRng::seed_from_u64(seed ^ 0xda3a);
        let shape = Shape {
            keys: [40, 400, 3000][seed as usize % 3],
            rounds: 2,
            batches: rng.random_range(3..25),
            has_films: seed % 2 == 0,
            is_closed: seed % 4 < 2,
            is_encrypted: seed % 3 == 1,
        };
        let world = World::new(seed, shape);
        for point in 0..12 {
            let image = world.image();
            let count = if point % 3 == 0 { rng.random_range(2..12) } else { 1 };
            let done: Vec<_> = (0..count).filter_map(|_| damage(&image, &mut rng)).collect();
            let context = format!("seed {seed}, point {point}: {done:?}");
            let made = match repair(&image) {
                Ok(made) => made,
                Err(Error::Missing { .. } | Error::NotADatabase { .. }) if count > 1 => continue,
                Err(error) => panic!("{context}: {error}"),
            };
            let is_silent = done.iter().any(|(name, kind)| is_silent(name, *kind));
            let counted = made.compare(&world.history, !is_silent, &context);
            repaired += 1;
            sum.keys += counted.keys;
            sum.listed += counted.listed;
            sum.differ += counted.differ;
            if done.iter().all(|(name, kind)| name == "data" && *kind == Damage::Flip) {
                of_data.keys += counted.keys;
                of_data.listed += counted.listed;
                of_data.differ += counted.differ;
            }
        }
    }
    println!("{repaired} repairs: {sum:?}; of flipped bits in the data: {of_data:?}");
    assert!(repaired > seeds() * 8 && sum.differ > 0);
    // Little more is listed than is lost.
    assert!(of_data.listed < 3 * of_data.differ + of_data.keys / 100, "{of_data:?}");
}

/// Until hardly a node is left. Flipped bits are always noticed.
#[test]
fn a_walk_of_flipped_bits_ends_in_an_empty_database() {
    for seed in 0..seeds() / 2 {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x3a1c);
        let (is_closed, is_encrypted) = (seed % 2 == 0, seed % 3 == 2);
        let shape = Shape { keys: 300, rounds: 2, batches: 9, has_films: true, is_closed, is_encrypted };
        let world = World::new(seed + 1000, shape);
        let image = world.image();
        let (mut flips, mut last) = (0, Counted::default());
        for step in 0..14 {
            let names: Vec<_> =
                image.list().expect("a list").into_iter().filter(|entry| entry.name != "KEYS").collect();
            for _ in 0..1u32 << step {
                let entry = &names[rng.random_range(0..names.len())];
                if entry.len > 0 {
                    let (byte, bit) = (rng.random_range(0..entry.len), rng.random_range(0..8));
                    image.flip_bit(&entry.name, byte, bit).expect("a bit");
                    flips += 1;
                }
            }
            let made = repair(&image).unwrap_or_else(|error| panic!("seed {seed}, {flips} flips: {error}"));
            last = made.compare(&world.history, true, &format!("seed {seed}, {flips} flips"));
        }
        assert!(last.differ * 2 > last.keys, "{last:?} after {flips} flips");
    }
}
