//! A register of ships, with types: records by number, an index by home port and name, positions of a fixed layout, and a new version of the
//! records.
//!
//! ```sh
//! cargo run -p sapwood-typed --example register
//! ```

use sapwood::{Database, Error, Result};
use sapwood_typed::{
    BatchExt, DatabaseExt, Fixed, Schema, StartsWith, TransactionExt, TypedKey, TypedKeyspace,
};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use zerocopy::byteorder::little_endian::F32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Values of any type of serde.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
struct Ship {
    name: String,
    port: String,
    built: u16,
}

/// A key of several parts: ordered by port, then by name.
#[derive(TypedKey, Debug, PartialEq)]
struct ByPort {
    port: String,
    name: String,
    number: u32,
}

/// Read where it lies, without decoding.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Position {
    latitude: F32,
    longitude: F32,
}

struct Register {
    db: Database,
    ships: TypedKeyspace<u32, Ship>,
    by_port: TypedKeyspace<ByPort, ()>,
    /// Of each ship the newest first.
    positions: TypedKeyspace<(u32, Reverse<SystemTime>), Fixed<Position>>,
}

impl Register {
    fn open(db: Database) -> Result<Self> {
        let (ships, by_port) = (db.typed("ships")?, db.typed("ships by port")?);
        let positions = db.typed_with("positions", Schema::new().value_name("Position"))?;
        Ok(Self { db, ships, by_port, positions })
    }

    /// Writes a ship and its entry in the index: both or neither, whatever others do.
    fn enter(&self, number: u32, ship: &Ship) -> Result<()> {
        let entry = |ship: &Ship| ByPort { port: ship.port.clone(), name: ship.name.clone(), number };
        self.db.transact(|tx| {
            if let Some(before) = tx.typed(&self.ships).replace(number, ship)? {
                tx.typed(&self.by_port).remove(entry(&before))?;
            }
            tx.typed(&self.by_port).insert(entry(ship), ())
        })
    }

    /// The ships of a port whose names begin so.
    fn at(&self, port: &str, start: &str) -> Result<Vec<Ship>> {
        let entries = self.by_port.prefix((port, StartsWith(start))).keys();
        let numbers = entries.map(|entry| Ok(entry?.number)).collect::<Result<Vec<_>>>()?;
        Ok(self.ships.multi_get(numbers)?.into_iter().flatten().collect()) // one parallel read
    }
}

fn main() -> Result<()> {
    let dir = std::env::temp_dir().join(format!("sapwood-register-{}", std::process::id()));
    let register = Register::open(Database::open(&dir)?)?;

    let ship = |name: &str, port: &str, built| Ship { name: name.into(), port: port.into(), built };
    register.enter(1, &ship("fram", "oslo", 1892))?;
    register.enter(2, &ship("framnes", "bergen", 1906))?;
    register.enter(3, &ship("maud", "bergen", 1917))?;
    register.enter(1, &ship("fram", "bergen", 1892))?; // it has moved
    let at = |port, start| -> Result<Vec<_>> {
        Ok(register.at(port, start)?.into_iter().map(|ship| ship.name).collect())
    };
    assert_eq!(at("bergen", "fram")?, ["fram", "framnes"]);
    assert_eq!(at("oslo", "")?, [""; 0]);

    let mut batch = register.db.batch();
    for hour in 0..24u8 {
        let time = UNIX_EPOCH + Duration::from_secs(u64::from(hour) * 3600);
        let position = Position { latitude: (60.0 + f32::from(hour)).into(), longitude: 5.0.into() };
        batch.typed(&register.positions).insert((1, Reverse(time)), Fixed::new(&position))?;
    }
    batch.commit()?;
    let newest = register.positions.prefix((1,)).next().expect("there are 24")?;
    println!("the fram at {}° N, {}° E", newest.1.latitude, newest.1.longitude);

    // Another type is an error that says what is there ...
    match register.db.typed::<String, Ship>("ships") {
        Err(error @ Error::Schema { .. }) => println!("{error}"),
        other => panic!("{other:?}"),
    }
    // ... unless there is a way from one to the other.
    let by_year = Schema::<(u16, u32), Ship>::new()
        .version(2)
        .migrate_from(Schema::<u32, Ship>::new(), |number, ship| Ok(Some(((ship.built, number), ship))));
    let ships = register.db.typed_with("ships", by_year)?;
    for item in ships.range((1900, 0)..) {
        let ((year, number), ship) = item?;
        println!("{year}: number {number}, {}", ship.name);
    }
    drop((register, ships));
    std::fs::remove_dir_all(&dir).expect("it is ours");
    Ok(())
}
