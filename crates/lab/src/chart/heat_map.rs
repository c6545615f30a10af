//! A table of colours: a row for each line, a column for each category, in each field the figure and a colour that darkens
//! as it grows.
//!
//! Invariants:
//! 1. Colours follow the logarithm of the figures, from the least of the whole table to the most; every field says its figure.
//! 2. A point that is not a number is said to be none, and a line without a point there leaves the field empty.

use super::{Chart, INK, cannot, number};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const LEFT: i32 = 160;
const TOP: i32 = 78;
const FIELD: (i32, i32) = (62, 22);
const BOTTOM: i32 = 44;
/// Below this lightness of a field, its figure is written in white.
const DARK: f64 = 0.55;

/// The colour of a share from 0 to 1: from nearly white to dark blue.
fn colour(share: f64) -> RGBColor {
    let mix = |from: u8, to: u8| {
        (f64::from(from) + share.clamp(0.0, 1.0) * (f64::from(to) - f64::from(from))) as u8
    };
    RGBColor(mix(247, 8), mix(251, 48), mix(255, 107))
}

/// The table as SVG.
pub(super) fn draw(chart: &Chart) -> Result<String, String> {
    let figures = || {
        let all = chart.lines.iter().flat_map(|line| &line.points);
        all.map(|(_, spread)| spread.median).filter(|figure| figure.is_finite() && *figure > 0.0)
    };
    let (least, most) = (figures().fold(f64::INFINITY, f64::min), figures().fold(0.0, f64::max));
    let share = |figure: f64| {
        if most <= least { 0.0 } else { (figure.max(least) / least).ln() / (most / least).ln() }
    };
    let mut columns: Vec<f64> =
        chart.lines.iter().flat_map(|line| &line.points).map(|point| point.0).collect();
    columns.sort_by(f64::total_cmp);
    columns.dedup();
    let width = (LEFT + FIELD.0 * columns.len() as i32 + 20).max(600) as u32;
    let size = (width, (TOP + FIELD.1 * chart.lines.len() as i32 + BOTTOM) as u32);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        root.fill(&WHITE).map_err(cannot)?;
        let style = |size: u32, colour: &RGBColor, side: HPos| {
            ("sans-serif", size).into_font().color(colour).pos(Pos::new(side, VPos::Center))
        };
        let write = |text: String, place: (i32, i32), style: TextStyle<'_>| {
            root.draw(&Text::new(text, place, style)).map_err(cannot)
        };
        write(chart.title.clone(), (10, 16), style(17, &INK, HPos::Left))?;
        write(
            format!("each field: {}; the darker, the more", chart.y.label),
            (10, 36),
            style(12, &INK, HPos::Left),
        )?;
        for (index, at) in columns.iter().enumerate() {
            let x = LEFT + FIELD.0 * index as i32 + FIELD.0 / 2;
            let name = chart.x.scale.name(*at);
            // Two lines where a name has two parts.
            let (first, second) = name.split_once(", ").unwrap_or(("", &name));
            write(first.to_owned(), (x, TOP - 24), style(11, &INK, HPos::Center))?;
            write(second.to_owned(), (x, TOP - 10), style(11, &INK, HPos::Center))?;
        }
        for (row, line) in chart.lines.iter().enumerate() {
            let y = TOP + FIELD.1 * row as i32;
            write(line.name.clone(), (LEFT - 8, y + FIELD.1 / 2), style(12, &INK, HPos::Right))?;
            for (at, spread) in &line.points {
                let column = columns.iter().position(|other| other == at).unwrap_or_default();
                let x = LEFT + FIELD.0 * column as i32;
                let middle = (x + FIELD.0 / 2, y + FIELD.1 / 2);
                if !spread.median.is_finite() {
                    write("none".to_owned(), middle, style(11, &INK, HPos::Center))?;
                    continue;
                }
                let share = share(spread.median);
                let corners = [(x, y), (x + FIELD.0 - 1, y + FIELD.1 - 1)];
                root.draw(&Rectangle::new(corners, colour(share).filled())).map_err(cannot)?;
                let ink = if share > DARK { WHITE } else { INK };
                write(number(spread.median), middle, style(11, &ink, HPos::Center))?;
            }
        }
        let y = TOP + FIELD.1 * chart.lines.len() as i32 + BOTTOM / 2;
        write(chart.x.label.clone(), (LEFT, y), style(12, &INK, HPos::Left))?;
        root.present().map_err(cannot)?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, Line, Scaling};
    use super::*;
    use crate::quantity::Spread;

    #[test]
    fn every_field_says_its_figure_and_darkens_with_it() {
        let spread = |median| Spread { median, min: median, max: median };
        let line = |name: &str, figures: &[f64]| Line {
            name: name.to_owned(),
            paired: false,
            points: (0..).zip(figures).map(|(at, figure)| (f64::from(at), spread(*figure))).collect(),
        };
        let mut chart = Chart {
            title: "A table".into(),
            x: Axis { label: "layers".into(), scale: Scaling::Names(&["page map, uniform", "raw"]) },
            y: Axis { label: "programs".into(), scale: Scaling::Colours },
            lines: vec![line("one", &[0.5, 64.0]), line("two", &[f64::NAN])],
            bars: false,
        };
        let svg = chart.to_svg().unwrap();
        for text in
            ["A table", "page map", "uniform", "raw", "0.5", "64", "none", "programs", "layers", "#08306B"]
        {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(colour(0.0).0 > colour(0.3).0 && colour(0.3).0 > colour(1.0).0);
        chart.lines.clear();
        assert!(chart.to_svg().unwrap().starts_with("<svg"));
    }
}
