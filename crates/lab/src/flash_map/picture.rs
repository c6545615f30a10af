//! One frame as SVG: what is in each block beside how often it was erased.

use super::{Frame, Played};
use crate::chart::bytes;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const CELL: (i32, i32) = (14, 14);
const GAP: i32 = 2;
const LEFT: i32 = 76;
const TOP: i32 = 74;
const BETWEEN: i32 = 56;
const BOTTOM: i32 = 52;

pub(super) const LIVE: RGBColor = RGBColor(0, 114, 178);
pub(super) const DEAD: RGBColor = RGBColor(230, 159, 0);
pub(super) const FREE: RGBColor = RGBColor(226, 230, 235);
const INK: RGBColor = RGBColor(40, 40, 40);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), String>;

fn cannot(error: impl std::fmt::Display) -> String {
    format!("the map cannot be drawn: {error}")
}

/// The colour of a wear from 0 to 1: from nearly white to dark red.
pub(super) fn wear_colour(share: f64) -> RGBColor {
    let mix = |from: u8, to: u8| {
        (f64::from(from) + share.clamp(0.0, 1.0) * (f64::from(to) - f64::from(from))) as u8
    };
    RGBColor(mix(253, 127), mix(240, 20), mix(225, 20))
}

/// The frame as SVG.
pub(crate) fn picture(played: &Played, frame: &Frame) -> Result<String, String> {
    let rows = played.geometry.units() as i32;
    let columns = played.geometry.blocks_per_plane as i32;
    let panel = columns * (CELL.0 + GAP);
    let right = LEFT + panel + BETWEEN;
    let size = ((right + panel + 24) as u32, (TOP + rows * (CELL.1 + GAP) + BOTTOM) as u32);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(cannot)?;
        let large = ("sans-serif", 18).into_font().color(&INK);
        let small = ("sans-serif", 12).into_font().color(&INK);
        let write = |text: String, place: (i32, i32)| {
            root.draw(&Text::new(text, place, small.clone())).map_err(cannot)
        };
        root.draw(&Text::new(played.title(), (LEFT, 10), large)).map_err(cannot)?;
        write(
            format!(
                "{} written by the host in {:.2} s of virtual time; {:.2} pages programmed for each of the host's at the end",
                bytes(frame.written as f64),
                frame.seconds,
                frame.amplification
            ),
            (LEFT, 34),
        )?;
        write("Pages of each block: live, dead, free".into(), (LEFT, TOP - 20))?;
        write(format!("Erases of each block: 0 to {}", played.erases_max()), (right, TOP - 20))?;
        let middle = small.clone().pos(Pos::new(HPos::Right, VPos::Center));
        let channels = played.geometry.channels as i32;
        for row in 0..rows {
            let text = format!("ch {} die {}", row % channels, row / channels);
            let y = TOP + row * (CELL.1 + GAP) + CELL.1 / 2;
            root.draw(&Text::new(text, (LEFT - 8, y), middle.clone())).map_err(cannot)?;
        }
        for (index, block) in frame.blocks.iter().enumerate() {
            let (row, column) = played.place(index);
            let at = (column as i32 * (CELL.0 + GAP), TOP + row as i32 * (CELL.1 + GAP));
            let shares = (block.live.unwrap_or(0), block.used, played.geometry.pages_per_block);
            fill(&root, (LEFT + at.0, at.1), shares)?;
            let share = f64::from(block.erases) / f64::from(played.erases_max());
            let corners = [(right + at.0, at.1), (right + at.0 + CELL.0, at.1 + CELL.1)];
            root.draw(&Rectangle::new(corners, wear_colour(share).filled())).map_err(cannot)?;
        }
        let y = TOP + rows * (CELL.1 + GAP) + 16;
        for (index, (colour, name)) in
            [(LIVE, "live"), (DEAD, "dead"), (FREE, "free")].into_iter().enumerate()
        {
            let x = LEFT + 80 * index as i32;
            root.draw(&Rectangle::new([(x, y), (x + 14, y + 14)], colour.filled())).map_err(cannot)?;
            write(name.into(), (x + 20, y + 1))?;
        }
        for step in 0..40 {
            let corners = [(right + step * 4, y), (right + step * 4 + 4, y + 14)];
            let colour = wear_colour(f64::from(step) / 39.0);
            root.draw(&Rectangle::new(corners, colour.filled())).map_err(cannot)?;
        }
        write("fresh to most erased".into(), (right + 168, y + 1))?;
        root.present().map_err(cannot)?;
    }
    Ok(svg)
}

/// One block: live pages below, dead ones on them, free ones on top.
fn fill(root: &Area<'_>, at: (i32, i32), (live, used, pages): (u32, u32, u32)) -> Drawn {
    let height = |count: u32| (f64::from(count) / f64::from(pages) * f64::from(CELL.1)).round() as i32;
    let (live, used) = (height(live), height(used));
    let draw = |from: i32, to: i32, colour: RGBColor| {
        if to <= from {
            return Ok(());
        }
        let corners = [(at.0, at.1 + CELL.1 - to), (at.0 + CELL.0, at.1 + CELL.1 - from)];
        root.draw(&Rectangle::new(corners, colour.filled())).map_err(cannot)
    };
    draw(0, live, LIVE)?;
    draw(live, used, DEAD)?;
    draw(used, CELL.1, FREE)
}

#[cfg(test)]
mod tests {
    use super::super::{Overwrites, Play, play};
    use super::*;

    #[test]
    fn every_block_is_there_with_its_name_and_scale() {
        let wish = Play { overwrites: Overwrites::Random, over_provision: 0.2, rounds: 1, frames: 4 };
        let played = play(wish).unwrap();
        let svg = picture(&played, played.frames.last().unwrap()).unwrap();
        for text in [
            "random overwrites",
            "ch 7 die 3",
            "live",
            "dead",
            "free",
            "Erases of each block",
            "virtual time",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        // Wear of each block, and at least one part of its pages.
        assert!(svg.matches("<rect").count() > 2 * played.geometry.blocks() as usize);
    }

    #[test]
    fn wear_darkens() {
        assert!(wear_colour(0.0).0 > wear_colour(1.0).0 && wear_colour(0.2).1 > wear_colour(0.9).1);
        assert_eq!(wear_colour(7.0), wear_colour(1.0));
    }
}
