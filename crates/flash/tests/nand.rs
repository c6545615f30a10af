//! A million and more random operations against a model that knows the rules and nothing of the implementation: no illegal
//! state gets through, nothing legal is refused, and every byte read is the right one. `NAND_OPERATIONS` for more.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use flash::{BlockId, Content, Error, Faults, Geometry, Nand, Order, PageId, Rules};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const GEOMETRY: Geometry = Geometry {
    channels: 2,
    dies_per_channel: 1,
    planes: 2,
    blocks_per_plane: 3,
    pages_per_block: 8,
    page_bytes: 512,
    spare_bytes: 16,
};
const PAGE: usize = 512;
const SPARE: usize = 16;

#[derive(Clone)]
struct PageModel {
    programs: u8,
    data: Vec<u8>,
    spare: Vec<u8>,
}

impl PageModel {
    fn free() -> Self {
        Self { programs: 0, data: vec![0xff; PAGE], spare: vec![0xff; SPARE] }
    }
}

#[derive(Clone)]
struct BlockModel {
    pages: Vec<PageModel>,
    erases: u32,
    bad: bool,
}

struct Model {
    rules: Rules,
    blocks: Vec<BlockModel>,
}

#[derive(Debug, PartialEq)]
enum Expected {
    Done,
    NotFree,
    OutOfOrder,
    BadBlock,
    WornOut,
    Misuse,
}

fn outcome(result: Result<(), Error>) -> Expected {
    match result {
        Ok(()) => Expected::Done,
        Err(Error::NotFree { .. }) => Expected::NotFree,
        Err(Error::OutOfOrder { .. }) => Expected::OutOfOrder,
        Err(Error::BadBlock { .. }) => Expected::BadBlock,
        Err(Error::WornOut { .. }) => Expected::WornOut,
        Err(Error::Misuse { .. }) => Expected::Misuse,
        Err(other) => panic!("{other}"),
    }
}

impl Model {
    fn new(rules: Rules) -> Self {
        let block = BlockModel { pages: vec![PageModel::free(); 8], erases: 0, bad: false };
        Self { rules, blocks: vec![block; GEOMETRY.blocks() as usize] }
    }

    /// The rules, said another way than in the crate.
    fn may_program(&self, block: usize, index: usize) -> Expected {
        let state = &self.blocks[block];
        if state.bad {
            return Expected::BadBlock;
        }
        if state.pages[index].programs >= self.rules.programs_max {
            return Expected::NotFree;
        }
        let later_used = state.pages[index + 1..].iter().any(|page| page.programs > 0);
        let earlier_free = state.pages[..index].iter().any(|page| page.programs == 0);
        let wrong = match self.rules.order {
            Order::Consecutive => later_used || earlier_free,
            Order::Ascending => later_used,
            Order::Any => false,
        };
        if wrong { Expected::OutOfOrder } else { Expected::Done }
    }

    fn program(&mut self, block: usize, index: usize, offset: usize, data: &[u8], spare: &[u8]) {
        let page = &mut self.blocks[block].pages[index];
        page.programs += 1;
        page.data[offset..].iter_mut().zip(data).for_each(|(byte, new)| *byte &= new);
        page.spare.iter_mut().zip(spare).for_each(|(byte, new)| *byte &= new);
    }

    fn erase(&mut self, block: usize) -> Expected {
        let state = &mut self.blocks[block];
        if state.bad {
            return Expected::BadBlock;
        }
        if self.rules.endurance == Some(state.erases) {
            state.bad = true;
            return Expected::WornOut;
        }
        state.erases += 1;
        state.pages = vec![PageModel::free(); 8];
        Expected::Done
    }
}

fn run(rules: Rules, operations: u64, seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut nand = Nand::new(GEOMETRY, rules, seed).unwrap();
    let mut model = Model::new(rules);
    let (mut data, mut spare) = ([0; PAGE], [0; SPARE]);
    let (mut done, mut refused) = (0_u64, 0_u64);
    for step in 0..operations {
        let block = rng.random_range(0..GEOMETRY.blocks());
        let model_block = block as usize;
        // Half of the time the page that is next, or operations in order would hardly ever happen.
        let index = match rng.random_bool(0.5) {
            true => model.blocks[model_block].pages.iter().position(|page| page.programs == 0).unwrap_or(7),
            false => rng.random_range(0..8),
        };
        let page = GEOMETRY.page(BlockId(block), index as u32);
        rng.fill(&mut data[..16]);
        rng.fill(&mut spare);
        let story = format!("seed {seed}, step {step}, block {block}, page {index}");
        match rng.random_range(0..100) {
            0..40 => {
                let expected = model.may_program(model_block, index);
                if expected == Expected::Done {
                    model.program(model_block, index, 0, &data, &spare);
                }
                assert_eq!(outcome(nand.program(page, &data, &spare)), expected, "program: {story}");
                if expected == Expected::Done { done += 1 } else { refused += 1 }
            }
            40..55 => {
                let offset = rng.random_range(0..=PAGE);
                let len = rng.random_range(0..=PAGE);
                let part = &data[..len];
                let mut expected = model.may_program(model_block, index);
                if offset + len > PAGE {
                    expected = Expected::Misuse;
                }
                if expected == Expected::Done {
                    model.program(model_block, index, offset, part, &spare[..4]);
                }
                let result = nand.program_part(page, offset, part, 0, &spare[..4]);
                assert_eq!(outcome(result), expected, "part: {story}");
            }
            55..60 => {
                let from = PageId(rng.random_range(0..GEOMETRY.pages()));
                let source = model.blocks[from.0 as usize / 8].pages[from.0 as usize % 8].clone();
                let target = &model.blocks[model_block].pages[index];
                let mut expected = model.may_program(model_block, index);
                if expected == Expected::Done && (source.programs == 0 || target.programs > 0) {
                    expected = Expected::Misuse;
                }
                if expected == Expected::Done {
                    model.program(model_block, index, 0, &source.data, &source.spare);
                }
                assert_eq!(outcome(nand.copy(from, page)), expected, "copy of {}: {story}", from.0);
            }
            60..65 => {
                assert_eq!(outcome(nand.erase(BlockId(block))), model.erase(model_block), "erase: {story}");
            }
            65..90 => {
                let offset = rng.random_range(0..PAGE);
                let mut found = vec![0; rng.random_range(0..=PAGE - offset)];
                nand.read(page, offset, &mut found).unwrap();
                let expected = &model.blocks[model_block].pages[index].data[offset..];
                assert_eq!(found, expected[..found.len()], "read: {story}");
            }
            90..98 => {
                let mut found = [0; SPARE];
                nand.read_spare(page, &mut found).unwrap();
                assert_eq!(found[..], model.blocks[model_block].pages[index].spare, "spare: {story}");
            }
            98 => {
                let wrong = PageId(rng.random_range(GEOMETRY.pages()..=u32::MAX));
                assert_eq!(outcome(nand.program(wrong, &data, &[])), Expected::Misuse);
                assert_eq!(outcome(nand.read(wrong, 0, &mut [])), Expected::Misuse);
                assert_eq!(outcome(nand.read(page, usize::MAX, &mut data)), Expected::Misuse);
                assert_eq!(outcome(nand.program(page, &data[1..], &[])), Expected::Misuse);
            }
            _ => nand = nand.clone(),
        }
    }
    assert!(done > operations / 50 && refused > operations / 50, "{done} done, {refused} refused");
    let erases: Vec<_> = (0..GEOMETRY.blocks()).map(|block| nand.erases(BlockId(block))).collect();
    assert_eq!(erases, model.blocks.iter().map(|block| block.erases).collect::<Vec<_>>());
}

#[test]
fn a_million_random_operations_keep_the_rules() {
    let operations = std::env::var("NAND_OPERATIONS").map_or(1_200_000, |n| n.parse().unwrap());
    let mut seed = 0;
    for order in [Order::Consecutive, Order::Ascending, Order::Any] {
        for (programs_max, endurance) in [(1, None), (4, None), (2, Some(2000))] {
            let rules = Rules { order, programs_max, endurance, ..Rules::default() };
            run(rules, operations / 9 + 1, seed);
            seed += 1;
        }
    }
}

#[test]
fn power_loss_leaves_each_page_old_new_or_unreadable() {
    let mut seen = [0; 4];
    for seed in 0..3000 {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut nand = Nand::new(GEOMETRY, Rules::default(), 1).unwrap();
        // Settled: page 0 of every block. In flight: more pages, and the erase of one block.
        for block in (0..GEOMETRY.blocks()).map(BlockId) {
            nand.program(GEOMETRY.page(block, 0), &[1; PAGE], &[1; SPARE]).unwrap();
        }
        nand.settle();
        let cut = rng.random_range(1..40);
        nand.cut_power_at(cut);
        let mut programmed = vec![1; GEOMETRY.blocks() as usize];
        let mut erased = None;
        for step in 1.. {
            let block = rng.random_range(0..GEOMETRY.blocks());
            let done = if step == 20 {
                erased = Some(block);
                programmed[block as usize] = 0;
                nand.erase(BlockId(block))
            } else if programmed[block as usize] < 8 {
                programmed[block as usize] += 1;
                let page = GEOMETRY.page(BlockId(block), programmed[block as usize] - 1);
                nand.program(page, &[step as u8; PAGE], &[step as u8; SPARE])
            } else {
                nand.read(GEOMETRY.page(BlockId(block), 0), 0, &mut [0; 1])
            };
            if done == Err(Error::PowerOff) {
                break;
            }
            done.unwrap();
        }
        assert!(nand.is_off());
        assert_eq!(nand.read(PageId(0), 0, &mut [0; 1]), Err(Error::PowerOff));
        nand.power_loss(seed);
        for block in 0..GEOMETRY.blocks() {
            if erased == Some(block) {
                continue;
            }
            let mut gone = false;
            for index in 0..8 {
                let mut data = [0; PAGE];
                let found = nand.read(GEOMETRY.page(BlockId(block), index), 0, &mut data);
                let free = found.is_ok() && data == [0xff; PAGE];
                assert!(!gone || free, "seed {seed}: a later page of block {block} without an earlier one");
                assert!(index > 0 || (found.is_ok() && data == [1; PAGE]), "seed {seed}: settled");
                assert!(found.is_err() || data.iter().all(|byte| *byte == data[0]), "seed {seed}: half");
                gone = found.is_err() || free;
                seen[if found.is_err() { 0 } else { 1 + usize::from(free) }] += 1;
            }
            let next = nand.next_page(BlockId(block));
            if next < 8 {
                nand.program(GEOMETRY.page(BlockId(block), next), &[9; PAGE], &[]).unwrap();
            }
        }
        if let Some(block) = erased.map(BlockId) {
            let next = nand.next_page(block);
            if next < 8 && nand.program(GEOMETRY.page(block, next), &[9; PAGE], &[]).is_err() {
                seen[3] += 1;
                let half = nand.program(GEOMETRY.page(block, next), &[9; PAGE], &[]);
                assert_eq!(half, Err(Error::HalfErased { block }));
                nand.erase(block).unwrap();
                nand.program(GEOMETRY.page(block, 0), &[9; PAGE], &[]).unwrap();
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
}

#[test]
fn failures_come_as_often_as_asked_and_stay() {
    let mut nand = Nand::new(GEOMETRY, Rules::default(), 3).unwrap();
    nand.set_faults(Faults { program: 0.1, erase: 0.05, bits: 0.2 });
    let (mut failed, mut flipped, mut programs) = (0, 0, 0);
    while nand.wear().bad < GEOMETRY.blocks() {
        for block in
            (0..GEOMETRY.blocks()).map(BlockId).filter(|block| !nand.is_bad(*block)).collect::<Vec<_>>()
        {
            if nand.erase(block) == Err(Error::EraseFailed { block }) {
                assert!(nand.is_bad(block));
                assert_eq!(nand.erase(block), Err(Error::BadBlock { block }));
                continue;
            }
            for index in 0..8 {
                programs += 1;
                let page = GEOMETRY.page(block, index);
                if nand.program(page, &[5; PAGE], &[]).is_err() {
                    failed += 1;
                    let unreadable = Err(Error::Unreadable { block, index });
                    assert_eq!(nand.read(page, 0, &mut [0; 1]), unreadable);
                } else {
                    let mut data = [0; PAGE];
                    nand.read(page, 0, &mut data).unwrap();
                    flipped += u32::from(data != [5; PAGE]);
                }
            }
        }
    }
    let share = |count: u32| f64::from(count) / f64::from(programs);
    assert!(
        (0.05..0.15).contains(&share(failed)) && (0.1..0.3).contains(&share(flipped)),
        "{failed} {flipped}"
    );
}

#[test]
fn tags_keep_the_beginning_of_a_page_and_its_spare_area() {
    let rules = Rules { content: Content::Tags, ..Rules::default() };
    let mut nand = Nand::new(GEOMETRY, rules, 0).unwrap();
    nand.program(PageId(0), &[7; PAGE], &[8; SPARE]).unwrap();
    nand.copy(PageId(0), PageId(8)).unwrap();
    let (mut data, mut spare) = ([1; PAGE], [0; SPARE]);
    nand.read(PageId(8), 0, &mut data).unwrap();
    assert_eq!((data[..16].to_vec(), data[16..].to_vec()), (vec![7; 16], vec![0; PAGE - 16]));
    nand.read(PageId(8), 10, &mut data[..10]).unwrap();
    assert_eq!(data[..10], [7, 7, 7, 7, 7, 7, 0, 0, 0, 0]);
    nand.read_spare(PageId(8), &mut spare).unwrap();
    assert_eq!(spare, [8; SPARE]);
    assert_eq!(nand.memory_bytes(), 2 * 8 * 32);
}

#[test]
fn a_peek_shows_what_a_read_does_and_leaves_no_trace() {
    let rules = Rules { programs_max: 2, ..Rules::default() };
    let mut nand = Nand::new(GEOMETRY, rules, 1).unwrap();
    let page = GEOMETRY.page(BlockId(1), 0);
    let peek = |nand: &Nand| {
        let (mut data, mut spare) = ([0; PAGE], [0; 4]);
        let programs = nand.peek(page, &mut data, &mut spare).unwrap();
        (programs, data, spare)
    };
    assert_eq!(peek(&nand), (0, [0xff; PAGE], [0xff; 4]));
    nand.program_part(page, 0, &[7; 100], 0, b"me").unwrap();
    let before = nand.counters();
    let (programs, data, spare) = peek(&nand);
    assert_eq!((programs, &data[..101], &spare), (1, &[&[7; 100][..], &[0xff]].concat()[..], b"me\xff\xff"));
    nand.set_faults(Faults { bits: 1.0, ..Faults::default() });
    assert_eq!(peek(&nand), (programs, data, spare), "no fault strikes");
    assert_eq!(nand.counters(), before);
    nand.spoil(page).unwrap();
    assert_eq!(peek(&nand), (255, [0xff; PAGE], [0xff; 4]));
    assert!(matches!(nand.peek(page, &mut [0; PAGE + 1], &mut []), Err(Error::Misuse { .. })));
    assert!(matches!(nand.peek(page, &mut [], &mut [0; SPARE + 1]), Err(Error::Misuse { .. })));
    assert!(matches!(nand.peek(PageId(GEOMETRY.pages()), &mut [], &mut []), Err(Error::Misuse { .. })));
}
