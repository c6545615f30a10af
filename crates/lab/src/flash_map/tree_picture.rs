//! The end of a play of a tree as SVG: once by what every page holds, once by how long it has.
//!
//! Invariant: a page of flash is a square in its block, eight side by side; blocks stand as in the other map: a row for each die, a
//! column for each block of it. Neighbours of one colour are one line, which keeps the file small.

use super::age;
use super::holds::Holds;
use super::of_tree::{TreePlayed, grouped};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Pages side by side in a block, pixels of a page and of a block with the gap behind it.
pub(super) const SIDE: u32 = 8;
pub(super) const DOT: u32 = 4;
pub(super) const BLOCK: u32 = SIDE * DOT + 5;
const LEFT: u32 = 84;
const TOP: u32 = 56;
/// Pixels of a line of a legend.
const LINE: u32 = 20;

type Colour = (u8, u8, u8);

/// The name of a row of blocks.
pub(super) fn die(played: &TreePlayed, row: u32) -> String {
    format!("channel {}, die {}", row % played.geometry.channels, row / played.geometry.channels)
}

/// One map, from `top` on.
fn map(svg: &mut String, played: &TreePlayed, top: u32, colours: &[Colour]) {
    let (geometry, units) = (played.geometry, played.geometry.units());
    for row in 0..units {
        let text = format!("ch {} die {}", row % geometry.channels, row / geometry.channels);
        let y = top + row * BLOCK + BLOCK / 2;
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\" font-size=\"12\">{text}</text>",
            LEFT - 8
        );
    }
    let mut lines: BTreeMap<Colour, String> = BTreeMap::new();
    let row_of = |page: u32| page / SIDE;
    let mut first = 0;
    while first < geometry.pages() {
        let colour = colours[first as usize];
        let run = (first..geometry.pages())
            .take_while(|page| row_of(*page) == row_of(first) && colours[*page as usize] == colour)
            .count() as u32;
        let (block, index) = (first / geometry.pages_per_block, first % geometry.pages_per_block);
        let x = LEFT + block / units * BLOCK + index % SIDE * DOT;
        let y = top + block % units * BLOCK + index / SIDE * DOT + DOT / 2;
        let _ = write!(lines.entry(colour).or_default(), "M{x} {y}h{}", run * DOT);
        first += run;
    }
    for ((red, green, blue), path) in lines {
        let _ =
            write!(svg, "<path d=\"{path}\" stroke=\"rgb({red},{green},{blue})\" stroke-width=\"{DOT}\"/>");
    }
}

/// A heading, and a legend below it that breaks its lines. The place behind it.
fn legend(svg: &mut String, width: u32, top: u32, heading: &str, entries: &[(Colour, String)]) -> u32 {
    let _ = write!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\" font-size=\"15\" font-weight=\"bold\">{heading}</text>",
        top + 16
    );
    let (mut x, mut y) = (LEFT, top + 26);
    for ((red, green, blue), text) in entries {
        let len = 38 + text.len() as u32 * 7;
        if x + len > width {
            (x, y) = (LEFT, y + LINE);
        }
        let _ = write!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" fill=\"rgb({red},{green},{blue})\"/>\
             <text x=\"{}\" y=\"{}\" font-size=\"12\">{text}</text>",
            x + 18,
            y + 11
        );
        x += len;
    }
    y + LINE + 4
}

/// The end as SVG.
pub(crate) fn tree_picture(played: &TreePlayed) -> String {
    let (geometry, play) = (played.geometry, played.play);
    let width = LEFT + geometry.blocks_per_plane * BLOCK + 16;
    let pages = played.at_the_end();
    let mut svg = String::new();
    let last = played.frames.last();
    let (seconds, programs, erases) =
        last.map_or((0.0, 0, 0), |frame| (frame.seconds, frame.programs, frame.erases));
    let _ = write!(
        svg,
        "<text x=\"{LEFT}\" y=\"24\" font-size=\"18\">{}</text><text x=\"{LEFT}\" y=\"44\" font-size=\"12\">\
         The updates took {seconds:.2} s of virtual time, {} pages programmed and {} blocks erased. {}</text>",
        played.title(),
        grouped(programs),
        grouped(erases),
        played.counted().unwrap_or_default()
    );
    let counts = played.counts();
    let kinds = Holds::in_legends().filter(|holds| counts[holds.number()] > 0);
    let kinds: Vec<_> = kinds
        .map(|holds| {
            let count = grouped(counts[holds.number()] as u64);
            (holds.colour(), format!("{}: {count}", holds.name(play.tree).0))
        })
        .collect();
    let top = legend(&mut svg, width, TOP, "What each page holds, and how many do", &kinds);
    map(&mut svg, played, top, &pages.iter().map(|page| page.0.colour()).collect::<Vec<_>>());
    let top = top + geometry.units() * BLOCK + 14;
    let mut ages: Vec<_> = age::COLOURS.into_iter().zip(age::names(play.operations)).collect();
    ages.extend(
        [Holds::Dead, Holds::Erased].map(|holds| (holds.colour(), holds.name(play.tree).0.to_owned())),
    );
    let top = legend(&mut svg, width, top, "The same pages by when each was written there, or moved", &ages);
    let colour = |(holds, frame): &(Holds, usize)| {
        let written = played.frames.get(*frame).map_or(0, |frame| frame.operations);
        let age = age::class(written, play.operations, play.operations);
        if holds.is_kept() { age::COLOURS[age] } else { holds.colour() }
    };
    map(&mut svg, played, top, &pages.iter().map(colour).collect::<Vec<_>>());
    let bottom = top + geometry.units() * BLOCK + 18;
    let _ = write!(
        svg,
        "<text x=\"{LEFT}\" y=\"{bottom}\" font-size=\"12\">A large square is a block of {} pages of {} KiB, a small one a page; a row \
         is a die. Flash cannot be overwritten: a new version goes to an erased page, and only whole blocks are erased.</text>",
        geometry.pages_per_block,
        geometry.page_bytes / 1024
    );
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" fill=\"#282828\"><rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>{svg}</svg>\n",
        height = bottom + 14
    )
}

#[cfg(test)]
mod tests {
    use super::super::of_tree::{TreePlay, play};
    use super::*;
    use crate::every_system::System;

    #[test]
    fn every_page_is_drawn_twice_and_the_legend_says_what_it_holds() {
        let wish = TreePlay { tree: System::Pio, records: 5_000, operations: 400, frames: 4 };
        let played = play(wish).unwrap();
        let svg = tree_picture(&played);
        let drawn: u32 = svg
            .split("<path d=\"")
            .skip(1)
            .flat_map(|path| path.split('"').next().unwrap().split('M').skip(1))
            .map(|line| line.split('h').nth(1).unwrap().parse::<u32>().unwrap())
            .sum();
        assert_eq!(drawn, 2 * DOT * played.geometry.pages());
        for text in ["PIO B-tree", "leaf segment: ", "erased: ", "before the first update", "ch 3 die 1"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(svg.ends_with("</svg>\n") && svg.len() < 300_000, "{} bytes", svg.len());
    }
}
