//! E20: insertion by structure, F and write buffer (AS B-tree, figure 9).

use super::{Card, Cause, Device, Parameter, Scale, Study};
use crate::as_suite::{
    self, AS, AS_SINGLY, Act, BFTL, BFTL_LONG, FANOUTS, IN_PLACE, IN_PLACE_SETS, Published, Recipe,
    WRITE_BUFFERS, claim, claim_band, series,
};
use crate::chart::{Chart, number};
use crate::failure::Result;
use crate::judgement::{Judgement, first_fall};
use crate::laboratory::{Laboratory, Layer};
use crate::quantity::{Clock, Quantity, Simulated, Wall};
use crate::row::{Missing, Row, Rows};
use crate::tree_ground::TreeGround;
use crate::wording::times;

pub(super) struct Insert;

/// Why BFTL is faster than the B+-tree on a drive with page mapping, at each scale, whatever the change.
pub(super) const BFTL_BEFORE: &str = "the B+-tree makes 3.0 reads and 1.0 write for a change, each write alone (251 us: the drive has \
    no write cache), BFTL 4.4 to 4.9 reads, and a write for 250 changes. That it is the writes alone shows the B+-tree that writes its \
    full buffer as one set, which could have refuted it: it takes 261 us, less than BFTL";
/// Why the B+-tree takes more of the AS B-tree's time than published.
const NO_CACHE: &str = "the simulated drive has no write cache, so that a node written in place takes the time of a program: 251 us with page mapping, where \
    table 2 has 100. In sequence the AS B-tree's takes 15 to 16 us with page mapping, and table 2 has 50. With FAST a node in place takes \
    911 us (std: 987), one in sequence 421 (444)";

/// The same for a change that is no insertion, on the drive with page mapping.
pub(super) const IN_PLACE_ALONE: &str = "the simulated drive has no write cache, so that a node written in place takes the time of a program: 251 us, where \
    table 2 has 100; in the AS B-tree's sequence it takes 16 us, and table 2 has 50. Written in place as one set, the run that could have \
    refuted this, it takes 14 us, and the two trees take the same time";

static CARD: Card = Card {
    number: 20,
    name: "as-insert",
    title: "Insertion: in place, in scattered units, always in sequence",
    source: "AS B-tree, Journal of Information Science and Engineering 30, 2014, figure 9",
    question: "A B+-tree and an AS B-tree gather changed nodes in a buffer of the same size. One writes them to where they were, \
               node by node, the other all together to the end of its file. What is that worth, by size of the node and of the \
               buffer? BFTL, in between, writes small units of many nodes together, and reads several sectors for a node.",
    reported: "AS B-tree with F = 256 and 32 nodes of buffer: 21 % less time than the B+-tree, 57 % faster than BFTL; it becomes \
               faster with F and with the buffer.",
    absent: &[(Device::Nand, "the B+-tree overwrites pages, which raw flash cannot")],
    causes: &[
        Cause { device: Device::Ssdsim, scale: None, key: "X25-E", text: as_suite::X25_E_CACHE },
        Cause { device: Device::Ssdsim, scale: None, key: "page map, order", text: BFTL_BEFORE },
        Cause {
            device: Device::Ssdsim,
            scale: Some(Scale::Ci),
            key: "FAST, order",
            text: "it is not that the B+-tree writes node by node: as one set, which could have shown that, it takes 1087 us, more than BFTL's 759. \
                   With FAST all writes of nodes cost much: in place it copies 1.7 pages an insertion to merge its log, and the writes of an insertion \
                   take 911 us, as a set 628, in the AS B-tree's sequence, which copies nothing, 421. BFTL programs 0.43 pages an insertion, \
                   the B+-tree 2.0 and the copies, and its writes take 78 us: more than its reads lose, 680 us to the B+-tree's 458",
        },
        Cause {
            device: Device::Ssdsim,
            scale: Some(Scale::Std),
            key: "FAST, order",
            text: "it is not that the B+-tree writes node by node: as one set, which could have shown that, it takes 1108 us, more than BFTL's 854. \
                   With FAST all writes of nodes cost much: in place it copies 1.9 pages an insertion to merge its log, and the writes of an insertion \
                   take 987 us, as a set 649, in the AS B-tree's sequence, which copies nothing, 444. BFTL programs 0.61 pages an insertion, \
                   the B+-tree 2.0 and the copies, and its writes take 103 us: more than its reads lose, 752 us to the B+-tree's 458",
        },
        Cause {
            device: Device::Disk,
            scale: None,
            key: "order",
            text: "the writes: the B+-tree's take 67 us an insertion, BFTL's 0.7, while its 3.45 reads take 219 us and the B+-tree's 3.0 take 223. Written as \
                   sets, the run that could have refuted this, they take 13 us, and the B+-tree 190 in all. The disk's pace is not even: the same \
                   3.0 reads took 169 us there. After 2000 insertions BFTL's lists are still short; on the simulated drive it makes 4.4 \
                   reads after 8000 (E20 there)",
        },
        Cause { device: Device::Ssdsim, scale: None, key: "page map, in-place", text: NO_CACHE },
        Cause { device: Device::Ssdsim, scale: None, key: "FAST, in-place", text: NO_CACHE },
        Cause {
            device: Device::Ssdsim,
            scale: Some(Scale::Ci),
            key: "page map, bftl",
            text: "reads are all that BFTL's time is (366 of 369 us), and after 8000 insertions its lists have 1.26 sectors for a node, where the paper's \
                   have 1.49: 4.4 reads an insertion with those to compact, to the AS B-tree's 3.0. At std, after 100,000, which could have \
                   refuted this, it is 1.33 sectors, 4.9 reads, and 1.55 times",
        },
        Cause {
            device: Device::Ssdsim,
            scale: Some(Scale::Std),
            key: "page map, bftl",
            text: "reads are all that BFTL's time is (405 of 409 us), and its lists have 1.33 sectors for a node, where the paper's have 1.49: 4.9 reads \
                   an insertion with those to compact, to the AS B-tree's 3.0. At ci, after 8000 insertions, it is 1.26 sectors, 4.4 reads, \
                   and 1.41 times",
        },
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "page map, fanout",
            text: "from F = 64 to 128 the tree loses a level (4, 3); from 128 to 256 it does not (3, 3), nor would the paper's with its \
                   400,000 records, while a node of 8 KiB takes somewhat more time to read than one of 4 (82.5 and 81.1 us), and a \
                   batch is twice as long",
        },
        Cause {
            device: Device::Ssdsim,
            scale: None,
            key: "FAST, fanout",
            text: "as with page map the levels are 4, 3, 3; and FAST keeps the pages of a logical block in one block, so that both \
                   pages of an 8 KiB node are read one after the other, on one die: 153 us for 80",
        },
        Cause {
            device: Device::Ssdsim,
            scale: Some(Scale::Ci),
            key: "FAST, bftl",
            text: "FAST, made for a single chip in 2007, keeps a logical block in one physical block: the AS B-tree's batch of 256 KiB \
                   is programmed by one die, page after page, 421 us for an insertion where page mapping, which spreads it over all \
                   dies, takes 15. BFTL programs 0.43 pages an insertion, the AS B-tree 2.0",
        },
        Cause {
            device: Device::Ssdsim,
            scale: Some(Scale::Std),
            key: "FAST, bftl",
            text: "FAST, made for a single chip in 2007, keeps a logical block in one physical block: the AS B-tree's batch of 256 KiB \
                   is programmed by one die, page after page, 444 us for an insertion where page mapping, which spreads it over all \
                   dies, takes 16. BFTL programs 0.61 pages an insertion, the AS B-tree 2.1",
        },
    ],
};

/// The simulated drives, by translation layer.
const DRIVES: [(Layer, &str); 2] = [(Layer::PageMap, "page map"), (Layer::Fast, "FAST")];
/// What the figure says of the AS B-tree: 21 % less time, of which table 2 has the seconds: 61 and 78; 57 % faster, or less time.
fn published() -> Published {
    Published { act: Act::Insert, in_place: 1.21..=1.28, bftl: 1.57..=2.33 }
}

impl Study for Insert {
    fn card(&self) -> &'static Card {
        &CARD
    }

    fn parameters(&self, scale: Scale, device: Device) -> Vec<Parameter> {
        as_suite::parameters(scale, device, &FANOUTS)
    }

    fn on_disk(&self, laboratory: &Laboratory) -> Result<Rows<Wall>> {
        let recipes = Recipe::grid(&FANOUTS);
        as_suite::measure(laboratory, Device::Disk, ("", true), &recipes, &[Act::Insert], |_| {
            laboratory.trees_on_disk()
        })
    }

    fn on_ssdsim(&self, laboratory: &Laboratory) -> Result<Rows<Simulated>> {
        let mut rows = Rows(Vec::new());
        for (layer, drive) in DRIVES {
            // What single writes take where a log is merged now and then, no short measurement can tell.
            let how = (drive, layer == Layer::PageMap);
            let ground = |run| TreeGround::on_drive(layer, run);
            let recipes = Recipe::grid(&FANOUTS);
            let measured =
                as_suite::measure(laboratory, Device::Ssdsim, how, &recipes, &[Act::Insert], ground)?;
            rows.0.extend(measured.0);
        }
        let drives = [&as_suite::X25_E[..], &as_suite::X25_E_READS_FIRST].concat();
        rows.0.extend(as_suite::measure_on_x25_e(laboratory, &[Act::Insert], &drives)?.0);
        Ok(rows)
    }

    fn judge<C: Clock>(&self, rows: &Rows<C>, device: Device) -> std::result::Result<Judgement, Missing> {
        let mut judgement = Judgement::default();
        let published = published();
        let drives =
            if device == Device::Ssdsim { DRIVES.map(|(_, drive)| drive).to_vec() } else { vec![""] };
        for drive in drives {
            let key = |key: &str| if drive.is_empty() { key.to_owned() } else { format!("{drive}, {key}") };
            let largest = series(drive, Act::Insert, 256);
            let time = |at| rows.median(&largest, at, Row::latency);
            let buffers = WRITE_BUFFERS
                .iter()
                .map(|(at, slots)| Ok((*slots as f64, time(*at)?.number())))
                .collect::<std::result::Result<Vec<_>, Missing>>()?;
            // A fall of speed is a rise of time.
            let speeds: Vec<_> = buffers.iter().map(|(slots, time)| (*slots, 1.0 / time)).collect();
            let told = |line: &[(f64, f64)]| {
                let each = line.iter().map(|(at, time)| format!("{} us at {at}", number(*time)));
                each.collect::<Vec<_>>().join(", ")
            };
            claim(
                &mut judgement,
                device,
                (
                    &key("buffer"),
                    "the AS B-tree's time does not rise with its write buffer (5 % slack)",
                    "falls",
                ),
                told(&buffers),
                first_fall(&speeds, 0.05).is_none(),
            );
            claim_band(
                &mut judgement,
                device,
                (
                    &key("in-place"),
                    "the B+-tree's time by the AS B-tree's, with F = 256 and 32 nodes of buffer",
                ),
                time(IN_PLACE)?.over(time(AS)?),
                published.in_place.clone(),
            );
            judgement.check(
                &key("order"),
                "the AS B-tree takes less time than the B+-tree, and that less than BFTL (C = 3, taken literally)",
                "in this order",
                format!(
                    "{}, {} and {} us",
                    number(time(AS)?.number()),
                    number(time(IN_PLACE)?.number()),
                    number(time(BFTL_LONG)?.number())
                ),
                time(AS)? < time(IN_PLACE)? && time(IN_PLACE)? < time(BFTL_LONG)?,
            );
            claim_band(
                &mut judgement,
                device,
                (&key("bftl"), "and BFTL's, which compacts lists longer than 3, by it"),
                time(BFTL_LONG)?.over(time(AS)?),
                published.bftl.clone(),
            );
            judgement.report(
                &key("lists-of-2"),
                "and a BFTL that compacts lists of 3",
                "1.57 to 2.3",
                times(time(BFTL)?.over(time(AS)?)),
            );
            let fanouts = FANOUTS
                .iter()
                .map(|keys| {
                    let time = rows.median(&series(drive, Act::Insert, *keys), AS, Row::latency)?;
                    Ok((*keys as f64, time.number()))
                })
                .collect::<std::result::Result<Vec<_>, Missing>>()?;
            claim(
                &mut judgement,
                device,
                (&key("fanout"), "its time falls with F", "falls"),
                told(&fanouts),
                fanouts.windows(2).all(|pair| pair[1].1 < pair[0].1),
            );
            if rows.points(&largest).contains(&AS_SINGLY) {
                judgement.report(
                    &key("singly"),
                    "an AS B-tree that writes its full buffer node by node, as algorithm 2 is printed: its time by the B+-tree's",
                    "0.79",
                    number(time(AS_SINGLY)?.over(time(IN_PLACE)?)),
                );
            }
            let sets = time(AS)?.over(time(IN_PLACE_SETS)?);
            judgement.report(
                &key("sets"),
                "its time by that of a B+-tree that writes its full buffer as one set, in place",
                "not asked",
                number(sets),
            );
        }
        let foretold = if device == Device::Ssdsim { DRIVES[0].1 } else { "" };
        as_suite::as_foretold(&mut judgement, rows, &series(foretold, Act::Insert, 256))?;
        as_suite::judge_on_x25_e(&mut judgement, rows, &published)?;
        Ok(judgement)
    }

    fn draw<C: Clock>(&self, rows: &Rows<C>) -> std::result::Result<Chart, Missing> {
        as_suite::draw(rows, CARD.title, "insert")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::as_suite::tests::figure;
    use crate::judgement::{Outcome, Place, Verdict};

    fn rows(fast: [f64; 6], fanouts: [f64; 3]) -> Rows<Simulated> {
        let drives = DRIVES.iter().flat_map(|(_, drive)| {
            let scaled = FANOUTS.iter().zip(fanouts);
            scaled.flat_map(move |(keys, scale)| {
                figure(&series(drive, Act::Insert, *keys), fast.map(|time| time * scale))
            })
        });
        Rows(drives.collect())
    }

    #[test]
    fn the_published_shape_holds_and_others_do_not() {
        let judge = |times, fanouts| Study::judge(&Insert, &rows(times, fanouts), Device::Ssdsim).unwrap();
        let (good, falling) = ([780.0, 1420.0, 700.0, 640.0, 620.0, 610.0], [1.5, 1.2, 1.0]);
        assert_eq!(judge(good, falling).verdict(), Verdict::Holds);
        let fails = |times, fanouts, key| {
            assert_eq!(judge(times, fanouts).outcome(key), Some(Outcome::Fails), "{key}");
        };
        fails(good, [1.5, 1.0, 1.0], "FAST, fanout");
        fails([780.0, 1420.0, 600.0, 640.0, 620.0, 650.0], falling, "page map, buffer");
        fails([730.0, 1420.0, 700.0, 640.0, 620.0, 610.0], falling, "FAST, in-place");
        fails([730.0, 1420.0, 700.0, 640.0, 620.0, 610.0], falling, "page map, in-place");
        fails([780.0, 950.0, 700.0, 640.0, 620.0, 610.0], falling, "FAST, bftl");
        fails([780.0, 770.0, 700.0, 640.0, 620.0, 610.0], falling, "page map, order");
        let much = judge([1200.0, 1420.0, 700.0, 640.0, 620.0, 610.0], falling);
        let in_place = much.checks.iter().find(|check| check.key == "FAST, in-place");
        assert_eq!(in_place.and_then(|check| check.place), Some(Place::Above));
        let mut odd = rows(good, falling);
        for row in odd.0.iter_mut().filter(|row| row.at == AS) {
            row.counts.insert("foretold_us".into(), 1e9);
        }
        let judged = Study::judge(&Insert, &odd, Device::Ssdsim).unwrap();
        assert_eq!(judged.outcome("foretold"), Some(Outcome::Fails));
    }
}
