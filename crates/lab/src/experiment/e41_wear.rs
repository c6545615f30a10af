//! E41, ours: what an update costs the flash, by system, translation layer, keys, and how full the drive is.

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::chart::{Axis, Chart, Line, Scaling, number};
use crate::every_system::{ENGINE_MEMORY, MEMORY, System};
use crate::failure::Result;
use crate::flash_trees::side_by_side;
use crate::judgement::Judgement;
use crate::laboratory::Laboratory;
use crate::quantity::{Clock, Simulated, Spread};
use crate::row::{Missing, Row, Rows};
use crate::wear_ground::{
    COPIES, ERASES, ERASES_MEAN, ERASES_MOST, Field, Keys, Mapping, NO_ROOM, OVER_PROVISION, PROGRAMS, READS,
    WearSize, series,
};

pub(super) struct FlashWear;

static CARD: Card = Card {
    number: 41,
    name: "wear",
    title: "What an update costs the flash, by system and translation layer",
    source: "ours",
    question: "An index is judged by what it writes; a drive wears out by what its flash programs and erases, and between the two is a \
               translation layer, which copies. Every system of this laboratory, with the same records and memory, on a used drive under \
               each of five layers, half full and nearly full, and those that manage raw flash without any layer: what do updates cost \
               the flash, and how evenly do blocks wear?",
    reported: "Nothing; the papers each have one layer, or a drive of which nobody knows what it does inside. What it means for someone who \
               chooses an index today, at ci scale, uniform keys, half full, page map: a B+-tree costs a flash page for nearly each \
               update (0.99), a tree that gathers updates first 0.12 to 0.28 (FD-tree, PIO B-tree, IBSF, AS-tree), Sapwood 0.023 with \
               sixteen times their memory, and 1.05 if every update is to be durable at once: what is promised costs more than which \
               tree it is. A drive with a page map or DFTL makes overwriting cheap; under layers that map blocks it costs a B+-tree 9.6 pages \
               (FAST) to 62 (block map), and gathering is what helps. Leave drives some room: nearly full, the B+-tree programs a third \
               more under page map and 16 pages under FMAX, and systems that keep old versions no longer fit (the AS B-tree not even at 50 %). The \
               least figures (LA-tree, LSM-tree, BFTL) are of 10,000 updates, much of whose work is still put off when they end.",
    absent: &[
        (Device::Disk, "a drive tells nobody what it does to its flash"),
        (Device::Nand, "raw flash is a column of the table on ssdsim"),
    ],
    causes: &CAUSES,
};

static CAUSES: [Cause; 2] = [
    Cause {
        device: Device::Ssdsim,
        scale: None,
        key: "sequential-anywhere",
        text: "writing at the end is not enough for a layer that maps blocks: every durable update writes the last page of the log \
               once more, and what is written in place costs a block of 64 pages; 1.05 pages an update under page map become \
               54 under block map. Gathered in 64 KiB the log costs 0.023 and 0.12. The AS-tree, which appends only, is within 1.27. \
               The AS B-tree has no room: see the first check",
    },
    Cause {
        device: Device::Ssdsim,
        scale: None,
        key: "sequential",
        text: "the AS B-tree has no room, and so no figure: it frees a sub-file when less than 5 % of its nodes are valid, as published, \
               so that random updates of an index of 7 MB fill all that is left of the drive before any sub-file comes to that. \
               In order it programs 0.0062 pages an update and copies nothing; neither do the others",
    },
];

/// Per cent of the drive.
const FULL: [u32; 2] = [50, 90];
/// Systems that copy nothing may have this write amplification, and no more.
const HARDLY_ANY: f64 = 1.1;
/// Costs closer than this share are no order.
const CLOSE: f64 = 0.1;
/// Columns of the picture: half full, and without a layer.
const COLUMNS: [&str; 18] = [
    "page map, uniform",
    "page map, zipfian",
    "page map, sequential",
    "DFTL, uniform",
    "DFTL, zipfian",
    "DFTL, sequential",
    "FAST, uniform",
    "FAST, zipfian",
    "FAST, sequential",
    "FMAX, uniform",
    "FMAX, zipfian",
    "FMAX, sequential",
    "block map, uniform",
    "block map, zipfian",
    "block map, sequential",
    "raw flash, uniform",
    "raw flash, zipfian",
    "raw flash, sequential",
];

type Found<T> = std::result::Result<T, Missing>;

/// A figure of a field; not a number if the system had no room.
fn figure<C: Clock>(
    rows: &Rows<C>,
    (system, mapping, keys, full): (System, Option<Mapping>, Keys, u32),
    of: impl Fn(&Row<C>) -> f64,
) -> Found<f64> {
    let name = series(system, mapping, keys);
    let there = |row: &&Row<C>| row.series == name && row.at == f64::from(full);
    match rows.0.iter().find(there) {
        Some(row) if row.count(NO_ROOM) == 1.0 => Ok(f64::NAN),
        _ => rows.median(&name, f64::from(full), of),
    }
}

fn programs<C: Clock>(row: &Row<C>) -> f64 {
    row.count(PROGRAMS) / row.requests as f64
}

/// Pages programmed for each that the host wrote.
fn amplification<C: Clock>(row: &Row<C>) -> f64 {
    let host = row.count(PROGRAMS) - row.count(COPIES);
    if host == 0.0 { 1.0 } else { row.count(PROGRAMS) / host }
}

/// Pairs of systems that stand one way in one list and the other way in the other, by more than what is close.
fn swapped(one: &[(System, f64)], other: &[(System, f64)]) -> Vec<String> {
    let less = |a: f64, b: f64| a * (1.0 + CLOSE) < b;
    let mut found = Vec::new();
    for (at, (system, first)) in one.iter().enumerate() {
        for (rival, second) in &one[at + 1..] {
            let of =
                |wanted| other.iter().find(|(system, _)| *system == wanted).map_or(f64::NAN, |pair| pair.1);
            let (third, fourth) = (of(*system), of(*rival));
            if (less(*first, *second) && less(fourth, third))
                || (less(*second, *first) && less(third, fourth))
            {
                found.push(format!("{} and {}", system.name(), rival.name()));
            }
        }
    }
    found
}

fn told(all: &[(System, f64)]) -> String {
    let tell = |(system, figure): &(System, f64)| match figure.is_finite() {
        true => format!("{} {}", system.name(), number(*figure)),
        false => format!("{} has no room", system.name()),
    };
    all.iter().map(tell).collect::<Vec<_>>().join(", ")
}

impl Study for FlashWear {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, _: Device) -> Vec<Parameter> {
        let size = WearSize::of(scale);
        let geometry = size.profile().geometry;
        vec![
            Parameter::new(
                "records",
                "not published",
                format!("{} of 16 B, loaded in order, nodes 69 % full", size.records),
            ),
            Parameter::new(
                "updates",
                "not published",
                format!("{} of keys that are there, and a flush", size.updates),
            ),
            Parameter::new(
                "keys",
                "not published",
                "uniform; Zipf's law with 0.99, stirred; ascending from the first",
            ),
            Parameter::new(
                "drive",
                "not published",
                format!(
                    "{} MiB of flash in {} blocks of {} pages of 4 KiB on 8 dies, {:.0} % over-provision, every page written once before",
                    geometry.bytes() >> 20,
                    geometry.blocks(),
                    geometry.pages_per_block,
                    100.0 * OVER_PROVISION
                ),
            ),
            Parameter::new(
                "full",
                "not published",
                "50 and 90 % of what the drive holds: the index, and a file beside it that nobody touches; raw flash holds the index alone, and was used by uniform updates, and a flush, until it had erased as many blocks as it has since the load",
            ),
            Parameter::new(
                "memory",
                "not published",
                format!(
                    "{} KiB; the CB-tree and most trees on raw flash take less, the engine its least, {} MiB",
                    MEMORY >> 10,
                    ENGINE_MEMORY >> 20
                ),
            ),
            Parameter::new(
                "durable",
                "not published",
                "what was flushed at the end, without logs; the engine logs every 64 KiB, or (each durable) every update; trees on raw \
                 flash but d-IPL, IPL and the CB-tree have every update on flash",
            ),
            Parameter::new(
                "runs",
                "not published",
                "one: operations are counted, by seed; the engine's threads take turns by none, so that its figures may differ \
                 from run to run",
            ),
        ]
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let size = WearSize::of(laboratory.scale);
        laboratory.expect(System::ON_A_VOLUME.len() + 1);
        let mut rows = Vec::new();
        let mut fields = |name: &str, fields: &[Field]| {
            laboratory.step(name)?;
            rows.extend(side_by_side(fields, |field| field.measure(size))?);
            Ok::<(), crate::failure::Failure>(())
        };
        for system in System::ON_A_VOLUME {
            let all = Mapping::ALL.into_iter().flat_map(|mapping| {
                FULL.into_iter().flat_map(move |full| {
                    Keys::ALL.map(|keys| Field { system, mapping: Some(mapping), keys, full })
                })
            });
            fields(system.name(), &all.collect::<Vec<_>>())?;
        }
        let raw = System::ON_RAW_FLASH
            .into_iter()
            .flat_map(|system| Keys::ALL.map(|keys| Field { system, mapping: None, keys, full: 0 }));
        fields("raw flash", &raw.collect::<Vec<_>>())?;
        Ok(Rows(rows))
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, _: Device) -> Found<Judgement> {
        let mut judgement = Judgement::default();
        let list = |systems: &[System], mapping, keys, full, of: &dyn Fn(&Row<C>) -> f64| {
            let one = |system: &System| Ok((*system, figure(rows, (*system, mapping, keys, full), of)?));
            systems.iter().map(one).collect::<Found<Vec<_>>>()
        };
        let page = Some(Mapping::Page);
        let per_update = |name: &'static str| move |row: &Row<C>| row.count(name) / row.requests as f64;

        let mut worst = Vec::new();
        for system in System::SEQUENTIAL {
            let mut most: f64 = 0.0;
            for keys in Keys::ALL {
                let found = figure(rows, (system, page, keys, 50), amplification)?;
                // Once there was no room, no figure speaks for the system.
                most = if most.is_nan() || found.is_nan() { f64::NAN } else { most.max(found) };
            }
            worst.push((system, most));
        }
        judgement.check(
            "sequential",
            "systems that write in sequence cost the layer no copies: at most 1.1 pages programmed for each written (page map, half full, the worst keys)",
            "not published",
            told(&worst),
            worst.iter().all(|(_, most)| *most <= HARDLY_ANY),
        );

        let uniform = |mapping| list(&System::ON_A_VOLUME, Some(mapping), Keys::Uniform, 50, &programs);
        let (on_pages, on_dftl) = (uniform(Mapping::Page)?, uniform(Mapping::Dftl)?);
        let pairs = swapped(&on_pages, &on_dftl);
        judgement.check(
            "order",
            "the order of systems by pages programmed an update is the same under page map and DFTL (uniform, half full; closer than 10 % is no order)",
            "not published",
            if pairs.is_empty() { "the same".to_owned() } else { format!("swapped: {}", pairs.join("; ")) },
            pairs.is_empty(),
        );

        let ratio = |system, over: Mapping, under: Mapping| {
            let of = |mapping| figure(rows, (system, Some(mapping), Keys::Uniform, 50), programs);
            Ok::<f64, Missing>(of(over)? / of(under)?)
        };
        let blind = ratio(System::BTree, Mapping::Block, Mapping::Page)?;
        judgement.check(
            "in-place-needs-a-layer",
            "the B+-tree, which overwrites, costs at least 10 times as many pages under block map as under page map (uniform, half full)",
            "not published",
            number(blind),
            blind >= 10.0,
        );
        let mut apart = Vec::new();
        for system in System::SEQUENTIAL {
            let of = |mapping| figure(rows, (system, Some(mapping), Keys::Uniform, 50), programs);
            let all = Mapping::ALL.into_iter().map(of).collect::<Found<Vec<_>>>()?;
            let (least, most) = all.iter().fold((f64::INFINITY, 0.0), |(least, most): (f64, f64), figure| {
                if figure.is_finite() {
                    (least.min(*figure), most.max(*figure))
                } else {
                    (f64::NAN, f64::NAN)
                }
            });
            apart.push((system, most / least));
        }
        judgement.check(
            "sequential-anywhere",
            "systems that write in sequence hardly care for the layer: the worst of the five costs at most twice the best (uniform, half full)",
            "not published",
            told(&apart),
            apart.iter().all(|(_, ratio)| *ratio <= 2.0),
        );

        let mut cheaper = Vec::new();
        for system in System::ON_A_VOLUME {
            let of = |full| figure(rows, (system, page, Keys::Uniform, full), programs);
            let (half, nearly) = (of(50)?, of(90)?);
            if nearly < half * 0.95 {
                cheaper.push(format!("{}: {} and {}", system.name(), number(half), number(nearly)));
            }
        }
        judgement.check(
            "fuller",
            "no system costs less on a fuller drive (page map, uniform; by more than 5 %)",
            "not published",
            if cheaper.is_empty() { "none does".to_owned() } else { cheaper.join("; ") },
            cheaper.is_empty(),
        );

        let raw = list(&System::ON_RAW_FLASH, None, Keys::Uniform, 0, &per_update(ERASES))?;
        let best =
            raw.iter().map(|pair| pair.1).filter(|erases| erases.is_finite()).fold(f64::INFINITY, f64::min);
        let layered = list(&[System::BTree], page, Keys::Uniform, 50, &per_update(ERASES))?[0].1;
        judgement.check(
            "raw",
            "the best tree on raw flash erases fewer blocks an update than the B+-tree under page map (uniform)",
            "not published",
            format!("{} and {}", number(best), number(layered)),
            best < layered,
        );

        for keys in Keys::ALL {
            for full in FULL {
                for (key, what, of) in [
                    ("programs", "flash pages programmed an update", PROGRAMS),
                    ("erases", "blocks erased an update", ERASES),
                ] {
                    let mut text = Vec::new();
                    for mapping in Mapping::ALL {
                        let found = list(&System::ON_A_VOLUME, Some(mapping), keys, full, &per_update(of))?;
                        text.push(format!("{}: {}", mapping.name(), told(&found)));
                    }
                    let claim = format!("{what}, {} keys, {full} % full", keys.name());
                    judgement.report(
                        &format!("{key}-{}-{full}", keys.name()),
                        &claim,
                        "not published",
                        text.join("; "),
                    );
                }
            }
            let found = list(&System::ON_RAW_FLASH, None, keys, 0, &programs)?;
            let claim = format!("flash pages programmed an update, {} keys, raw flash", keys.name());
            judgement.report(&format!("raw-{}", keys.name()), &claim, "not published", told(&found));
        }
        let reads = list(&System::ON_A_VOLUME, page, Keys::Uniform, 50, &per_update(READS))?;
        judgement.report(
            "reads",
            "flash pages read an update (page map, uniform, half full)",
            "not published",
            told(&reads),
        );
        for (mapping, full, systems) in [
            (page, 50, &System::ON_A_VOLUME[..]),
            (Some(Mapping::Block), 50, &System::ON_A_VOLUME[..]),
            (None, 0, &System::ON_RAW_FLASH[..]),
        ] {
            let most = list(systems, mapping, Keys::Zipfian, full, &|row| row.count(ERASES_MOST))?;
            let mean = list(systems, mapping, Keys::Zipfian, full, &|row| row.count(ERASES_MEAN))?;
            let both = most.iter().zip(&mean).map(|((system, most), (_, mean))| match most.is_finite() {
                true => format!("{} {} and {}", system.name(), number(*most), number(*mean)),
                false => format!("{} has no room", system.name()),
            });
            let name = mapping.map_or("raw flash", Mapping::name);
            judgement.report(
                &format!("wear-{name}"),
                &format!("erases of the block erased most, and of the mean block ({name}, zipfian)"),
                "not published",
                both.collect::<Vec<_>>().join(", "),
            );
        }
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> Found<Chart> {
        let columns: Vec<_> = Mapping::ALL
            .into_iter()
            .map(Some)
            .chain([None])
            .flat_map(|mapping| Keys::ALL.map(|keys| (mapping, keys)))
            .collect();
        let mut lines = Vec::new();
        for system in System::ON_A_VOLUME.into_iter().chain(System::ON_RAW_FLASH) {
            let mut points = Vec::new();
            for (at, (mapping, keys)) in columns.iter().enumerate() {
                if mapping.is_none() != System::ON_RAW_FLASH.contains(&system) {
                    continue;
                }
                let full = if mapping.is_some() { 50 } else { 0 };
                let median = figure(rows, (system, *mapping, *keys, full), programs)?;
                points.push((at as f64, Spread { median, min: median, max: median }));
            }
            lines.push(Line { name: system.name().to_owned(), paired: false, points });
        }
        Ok(Chart {
            title: CARD.title.into(),
            x: Axis {
                label: "translation layer, and which keys are updated; drives half full".into(),
                scale: Scaling::Names(&COLUMNS),
            },
            y: Axis { label: "flash pages programmed for an update".into(), scale: Scaling::Colours },
            lines,
            bars: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgement::{Outcome, Verdict};
    use crate::row::tests::row;

    /// Programs, copies and erases of 1000 updates in each field.
    fn rows(change: impl Fn(Field, &mut [f64; 3])) -> Rows<Simulated> {
        let mut rows = Vec::new();
        let mut put = |field: Field| {
            let sequential = System::SEQUENTIAL.contains(&field.system);
            let place = 100.0 * (1.0 + field.system as u32 as f64);
            let mut counts = match field.mapping {
                _ if sequential => [place, 0.0, 2.0],
                Some(Mapping::Block) => [30.0 * place, 29.0 * place, 60.0],
                Some(_) => [place, place / 2.0, 30.0],
                None => [place, 0.0, 10.0],
            };
            change(field, &mut counts);
            let mut row = row(&field.series(), f64::from(field.full), 0, 1.0);
            for (name, count) in [PROGRAMS, COPIES, ERASES].into_iter().zip(counts) {
                row.counts.insert(name.to_owned(), count);
            }
            if counts[0].is_nan() {
                row.counts = [(NO_ROOM.to_owned(), 1.0)].into();
            } else {
                for name in [READS, ERASES_MOST, ERASES_MEAN] {
                    row.counts.insert(name.to_owned(), 1.0);
                }
            }
            rows.push(row);
        };
        for keys in Keys::ALL {
            for system in System::ON_A_VOLUME {
                for mapping in Mapping::ALL {
                    for full in FULL {
                        put(Field { system, mapping: Some(mapping), keys, full });
                    }
                }
            }
            for system in System::ON_RAW_FLASH {
                put(Field { system, mapping: None, keys, full: 0 });
            }
        }
        Rows(rows)
    }

    fn judge(rows: &Rows<Simulated>) -> Judgement {
        Study::judge(&FlashWear, rows, Device::Ssdsim).unwrap()
    }

    #[test]
    fn what_was_asked_holds_and_each_claim_can_fail() {
        let good = judge(&rows(|_, _| ()));
        assert_eq!(good.verdict(), Verdict::Holds, "{good:?}");
        let fails = |key: &str, wanted: &dyn Fn(Field) -> bool, which: usize, value: f64| {
            let changed = rows(|field, counts| {
                if wanted(field) {
                    counts[which] = value;
                }
            });
            assert_eq!(judge(&changed).outcome(key), Some(Outcome::Fails), "{key}");
        };
        let at = |system, mapping, keys, full| {
            move |field: Field| {
                field.system == system && field.mapping == mapping && field.keys == keys && field.full == full
            }
        };
        let page = Some(Mapping::Page);
        fails("sequential", &at(System::As, page, Keys::Zipfian, 50), 1, 200.0);
        fails("sequential", &at(System::As, page, Keys::Zipfian, 50), 0, f64::NAN);
        fails("order", &at(System::BTree, Some(Mapping::Dftl), Keys::Uniform, 50), 0, 400.0);
        fails(
            "in-place-needs-a-layer",
            &at(System::BTree, Some(Mapping::Block), Keys::Uniform, 50),
            0,
            900.0,
        );
        fails("sequential-anywhere", &at(System::Engine, Some(Mapping::Fast), Keys::Uniform, 50), 0, 4000.0);
        fails("fuller", &at(System::Lu, page, Keys::Uniform, 90), 0, 400.0);
        fails("raw", &at(System::BTree, page, Keys::Uniform, 50), 2, 9.0);
    }

    #[test]
    fn the_picture_has_every_system_and_says_who_has_no_room() {
        let tight = rows(|field, counts| {
            if field.system == System::As {
                counts[0] = f64::NAN;
            }
        });
        let svg = Study::draw(&FlashWear, &tight).unwrap().to_svg().unwrap();
        for system in System::ON_A_VOLUME.into_iter().chain(System::ON_RAW_FLASH) {
            assert!(svg.contains(system.name()), "{system:?}");
        }
        assert!(svg.contains("none") && svg.contains("zipfian") && svg.contains("raw flash"));
        let columns = Mapping::ALL.map(Mapping::name).into_iter().chain(["raw flash"]);
        let names = columns.flat_map(|mapping| Keys::ALL.map(|keys| format!("{mapping}, {}", keys.name())));
        assert_eq!(names.collect::<Vec<_>>(), COLUMNS, "columns are in the order of the points");
    }
}
