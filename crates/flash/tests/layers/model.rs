//! Any sequence of operations against a map in memory.

use crate::harness::{KINDS, Kind, PAGE, SMALL, content, options, read, trim, write};
use flash::{Flash, Ftl, LogicalPage, RequestKind, Rules};
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Debug)]
enum Step {
    /// Overwrite this many pages in order.
    Write {
        page: u32,
        count: u32,
    },
    Read {
        page: u32,
        offset: usize,
        len: usize,
    },
    Trim {
        page: u32,
        count: u32,
    },
    PowerLoss {
        seed: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    // Now and then whole logical blocks.
    let page = prop_oneof![3 => 0_u32..300, 1 => (0_u32..37).prop_map(|block| block * 8), 2 => 0_u32..20];
    let count = prop_oneof![4 => Just(1_u32), 1 => 1_u32..20];
    prop_oneof![
        12 => (page.clone(), count.clone()).prop_map(|(page, count)| Step::Write { page, count }),
        3 => (page.clone(), 0..PAGE, 0..PAGE).prop_map(|(page, offset, len)| Step::Read { page, offset, len }),
        2 => (page, count).prop_map(|(page, count)| Step::Trim { page, count }),
        1 => any::<u64>().prop_map(|seed| Step::PowerLoss { seed }),
    ]
}

/// What the pages hold: a version, or who knows (trimmed before a power loss).
type Model = HashMap<u32, Option<u64>>;

fn expect(layer: &mut dyn Ftl, flash: &mut Flash, page: u32, offset: usize, len: usize, model: &Model) {
    let len = len.min(PAGE - offset);
    let mut found = vec![0xaa; len];
    flash.begin_request(RequestKind::Read, len as u32);
    layer.read(flash, LogicalPage(page), offset, &mut found).unwrap();
    match model.get(&page) {
        Some(None) => {}
        Some(Some(version)) => {
            assert_eq!(found, content(page, *version)[offset..offset + len], "page {page}")
        }
        None => assert_eq!(found, vec![0; len], "page {page} holds nothing"),
    }
}

fn run(kind: Kind, steps: &[Step]) {
    let mut flash = Flash::new(SMALL, Rules::default(), 0).unwrap();
    let mut layer = kind.make(&flash, options()).unwrap();
    let pages = layer.logical_pages();
    let (mut model, mut trimmed, mut version) = (Model::new(), Vec::new(), 0);
    for step in steps {
        match *step {
            Step::Write { page, count } => {
                for page in page..(page + count).min(pages) {
                    version += 1;
                    write(&mut *layer, &mut flash, page, &content(page, version)).unwrap();
                    model.insert(page, Some(version));
                }
            }
            Step::Read { page, offset, len } => {
                expect(&mut *layer, &mut flash, page, offset, len, &model);
            }
            Step::Trim { page, count } => {
                for page in page..(page + count).min(pages) {
                    trim(&mut *layer, &mut flash, page).unwrap();
                    model.remove(&page);
                    trimmed.push(page);
                }
            }
            Step::PowerLoss { seed } => {
                flash.settle();
                flash.nand_mut().power_loss(seed);
                layer = layer.recovered(&mut flash).unwrap();
                for page in &trimmed {
                    model.entry(*page).or_insert(None);
                }
            }
        }
    }
    for page in 0..pages {
        expect(&mut *layer, &mut flash, page, 0, PAGE, &model);
        let wanted = model.get(&page).copied().flatten();
        if let Some(wanted) = wanted {
            assert_eq!(read(&mut *layer, &mut flash, page).unwrap(), content(page, wanted));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_layer_is_a_map(steps in proptest::collection::vec(step(), 1..400)) {
        for kind in KINDS {
            run(kind, &steps);
        }
    }
}
