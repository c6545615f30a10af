//! Pictures of what was measured, as SVG: lines over a doubling or an even axis, with the range of the runs as bars at
//! each point, and bars by category.
//!
//! Invariant: every axis says what it shows and in which unit; every line is named beside the picture, never in it,
//! where it might hide a point.

mod heat_map;

use crate::quantity::{Clock, Quantity, Spread};
use crate::row::{Missing, Row, Rows};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// One picture.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// What is varied.
    pub x: Axis,
    /// What was measured.
    pub y: Axis,
    /// In the order of the legend.
    pub lines: Vec<Line>,
    /// Drawn as bars side by side at each point instead of as lines.
    pub bars: bool,
}

/// One axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Name and unit.
    pub label: String,
    /// How values are spaced and written.
    pub scale: Scaling,
}

/// How an axis places and writes values.
#[derive(Clone, Copy, Debug)]
pub enum Scaling {
    /// Evenly, from zero.
    Even,
    /// Each step doubles; written as plain numbers.
    Doubling,
    /// Each step doubles; written as bytes.
    DoublingBytes,
    /// Categories 0, 1, 2, … by name.
    Names(&'static [&'static str]),
    /// As colours, of which each step doubles: every line is a row of a table, every point a field of it. For the axis of what
    /// was measured alone.
    Colours,
}

/// One line: its points by what is varied.
#[derive(Clone, Debug)]
pub struct Line {
    /// As in the legend.
    pub name: String,
    /// Dashed, in the colour of the line before it: for the other half of a pair.
    pub paired: bool,
    /// Points with the range of the runs.
    pub points: Vec<(f64, Spread<f64>)>,
}

impl Line {
    /// All lines of a record: `figure` times `scale` at every point.
    ///
    /// # Errors
    /// [`Missing`] if a row does not have the figure.
    pub fn all<C: Clock, Q: Quantity>(
        rows: &Rows<C>,
        scale: f64,
        figure: impl Fn(&Row<C>) -> Q,
    ) -> Result<Vec<Self>, Missing> {
        let line = |name: &str| {
            let point = |at| Ok((at, rows.spread(name, at, &figure)?.scaled(scale)));
            let points = rows.points(name).into_iter().map(point).collect::<Result<_, Missing>>()?;
            Ok(Self { name: name.to_owned(), paired: false, points })
        };
        rows.series().into_iter().map(line).collect()
    }
}

const SIZE: (u32, u32) = (900, 440);
const LEGEND: u32 = 210;
/// Told apart also by those who do not see all colours (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];
const INK: RGBColor = RGBColor(40, 40, 40);

impl Scaling {
    fn place(self, value: f64) -> f64 {
        match self {
            Scaling::Even | Scaling::Names(_) => value,
            Scaling::Doubling | Scaling::DoublingBytes | Scaling::Colours => {
                value.max(f64::MIN_POSITIVE).log2()
            }
        }
    }

    fn write(self, place: f64) -> String {
        match self {
            Scaling::Even => number(place),
            Scaling::Doubling if place.fract().abs() < 1e-6 => number(place.exp2()),
            Scaling::DoublingBytes if place.fract().abs() < 1e-6 => bytes(place.exp2()),
            Scaling::Names(names) if place.fract().abs() < 1e-6 && place >= 0.0 => {
                names.get(place.round() as usize).map(|name| (*name).to_owned()).unwrap_or_default()
            }
            _ => String::new(),
        }
    }

    /// A value of this axis in words.
    pub(crate) fn name(self, value: f64) -> String {
        match self {
            Scaling::Even | Scaling::Doubling | Scaling::Colours => number(value),
            Scaling::DoublingBytes => bytes(value),
            Scaling::Names(_) => self.write(value),
        }
    }

    /// The ends of an axis that shows all the values, and how many marks it takes.
    fn range(self, values: impl Iterator<Item = f64>) -> (f64, f64, usize) {
        let places = values.map(|value| self.place(value)).filter(|place| place.is_finite());
        let (low, high) = places
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), place| (low.min(place), high.max(place)));
        if low > high {
            return (0.0, 1.0, 2);
        }
        match self {
            Scaling::Even => (0.0, if high > 0.0 { high * 1.08 } else { 1.0 }, 8),
            Scaling::Names(names) => (-0.5, names.len() as f64 - 0.5, names.len() + 2),
            _ => {
                let (low, high) = (low.floor(), high.ceil().max(low.floor() + 1.0));
                (low, high, (high - low) as usize + 1)
            }
        }
    }
}

/// A number as people read it: no more digits than tell something.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1e6 {
        format!("{} M", trimmed(value / 1e6))
    } else if size >= 1e4 {
        format!("{} k", trimmed(value / 1e3))
    } else {
        trimmed(value)
    }
}

fn trimmed(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Bytes as people read them.
pub(crate) fn bytes(value: f64) -> String {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, size) in units {
        if value >= size as f64 {
            return format!("{} {unit}", trimmed(value / size as f64));
        }
    }
    format!("{} B", trimmed(value))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), String>;

fn cannot(error: impl std::fmt::Display) -> String {
    format!("the picture cannot be drawn: {error}")
}

impl Chart {
    /// The picture as SVG.
    ///
    /// # Errors
    /// What the drawing library says.
    pub fn to_svg(&self) -> Result<String, String> {
        if matches!(self.y.scale, Scaling::Colours) {
            return heat_map::draw(self);
        }
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            root.fill(&WHITE).map_err(cannot)?;
            let root =
                root.titled(&self.title, ("sans-serif", 18).into_font().color(&INK)).map_err(cannot)?;
            let (plot, legend) = root.split_horizontally(SIZE.0 - LEGEND);
            self.draw(&plot)?;
            self.name_lines(&legend)?;
            root.present().map_err(cannot)?;
        }
        Ok(svg)
    }

    fn draw(&self, area: &Area<'_>) -> Drawn {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let (left, right, x_marks) = self.x.scale.range(points().map(|point| point.0));
        let ends = points().flat_map(|(_, spread)| [spread.min, spread.median, spread.max]);
        let (bottom, top, y_marks) = self.y.scale.range(ends);
        // A little room, so that no point lies on the frame.
        let room = if matches!(self.x.scale, Scaling::Names(_)) { 0.0 } else { (right - left) * 0.02 };
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(left - room..right + room, bottom..top)
            .map_err(cannot)?;
        let (x, y) = (self.x.scale, self.y.scale);
        chart
            .configure_mesh()
            .x_desc(&self.x.label)
            .y_desc(&self.y.label)
            .x_labels(x_marks)
            .y_labels(y_marks)
            .max_light_lines(1)
            .light_line_style(WHITE)
            .bold_line_style(RGBColor(225, 225, 225))
            .axis_style(RGBColor(120, 120, 120))
            .label_style(("sans-serif", 13).into_font().color(&INK))
            .axis_desc_style(("sans-serif", 14).into_font().color(&INK))
            .x_label_formatter(&|place| x.write(*place))
            .y_label_formatter(&|place| y.write(*place))
            .draw()
            .map_err(cannot)?;
        let colours = self.colours();
        let width = 0.8 / self.lines.len().max(1) as f64;
        for (index, line) in self.lines.iter().enumerate() {
            let colour = colours[index];
            let placed: Vec<_> = line
                .points
                .iter()
                .filter(|(_, spread)| spread.median.is_finite())
                .map(|(at, spread)| {
                    let side = if self.bars { (index as f64 + 0.5) * width - 0.4 } else { 0.0 };
                    (x.place(*at) + side, spread)
                })
                .collect();
            if self.bars {
                let bars = placed.iter().map(|(at, spread)| {
                    let (half, top) = (width * 0.45, y.place(spread.median));
                    Rectangle::new([(at - half, bottom), (at + half, top)], colour.mix(0.85).filled())
                });
                chart.draw_series(bars).map_err(cannot)?;
            } else {
                let path = placed.iter().map(|(at, spread)| (*at, y.place(spread.median)));
                let style = colour.stroke_width(2);
                if line.paired {
                    chart.draw_series(DashedLineSeries::new(path.clone(), 6, 4, style)).map_err(cannot)?;
                } else {
                    chart.draw_series(LineSeries::new(path.clone(), style)).map_err(cannot)?;
                }
                chart
                    .draw_series(path.map(|place| Circle::new(place, 3, colour.filled())))
                    .map_err(cannot)?;
            }
            let ranges = placed.iter().filter(|(_, spread)| spread.max > spread.min).map(|(at, spread)| {
                let ends = [(*at, y.place(spread.min)), (*at, y.place(spread.max))];
                PathElement::new(ends, if self.bars { INK } else { colour })
            });
            chart.draw_series(ranges).map_err(cannot)?;
        }
        Ok(())
    }

    /// A colour for each line; pairs have the same.
    fn colours(&self) -> Vec<RGBColor> {
        let mut next = 0;
        let mut colours = Vec::with_capacity(self.lines.len());
        for line in &self.lines {
            match colours.last() {
                Some(before) if line.paired => colours.push(*before),
                _ => {
                    colours.push(COLOURS[next % COLOURS.len()]);
                    next += 1;
                }
            }
        }
        colours
    }

    fn name_lines(&self, area: &Area<'_>) -> Drawn {
        let style = ("sans-serif", 13).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
        let colours = self.colours();
        for (index, line) in self.lines.iter().enumerate() {
            let y = 30 + 22 * index as i32;
            let colour = colours[index];
            if self.bars {
                area.draw(&Rectangle::new([(4, y - 6), (20, y + 6)], colour.mix(0.85).filled()))
                    .map_err(cannot)?;
            } else {
                let parts: &[(i32, i32)] = if line.paired { &[(0, 6), (18, 24)] } else { &[(0, 24)] };
                for (from, to) in parts {
                    let part = PathElement::new([(*from, y), (*to, y)], colour.stroke_width(2));
                    area.draw(&part).map_err(cannot)?;
                }
                area.draw(&Circle::new((12, y), 3, colour.filled())).map_err(cannot)?;
            }
            area.draw(&Text::new(line.name.clone(), (30, y), style.clone())).map_err(cannot)?;
        }
        let note = "thin bars: least and most of all runs";
        let y = 30 + 22 * self.lines.len() as i32 + 8;
        let small = ("sans-serif", 11).into_font().color(&RGBColor(110, 110, 110));
        area.draw(&Text::new(note, (0, y), small)).map_err(cannot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, Spread<f64>)>, bars: bool) -> Chart {
        Chart {
            title: "Latency by size".into(),
            x: Axis { label: "bytes of a request".into(), scale: Scaling::DoublingBytes },
            y: Axis { label: "microseconds".into(), scale: Scaling::Even },
            lines: vec![
                Line { name: "read".into(), paired: false, points: points.clone() },
                Line { name: "write".into(), paired: true, points },
            ],
            bars,
        }
    }

    fn spread(median: f64) -> Spread<f64> {
        Spread { median, min: median * 0.9, max: median * 1.2 }
    }

    #[test]
    fn axes_lines_and_ranges_are_there() {
        let points = vec![(4096.0, spread(50.0)), (8192.0, spread(52.0)), (16384.0, spread(60.0))];
        let svg = chart(points.clone(), false).to_svg().unwrap();
        for text in [
            "Latency by size",
            "bytes of a request",
            "microseconds",
            "4 KiB",
            "8 KiB",
            "16 KiB",
            "read",
            "write",
        ] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert_eq!(svg.matches("<circle").count(), 2 * 3 + 2);
        let bars = chart(points, true).to_svg().unwrap();
        assert!(bars.matches("<rect").count() >= 6);
    }

    #[test]
    fn nothing_and_nonsense_are_drawn_empty() {
        assert!(chart(Vec::new(), false).to_svg().unwrap().starts_with("<svg"));
        let nan = Spread { median: f64::NAN, min: f64::NAN, max: f64::NAN };
        assert!(chart(vec![(4096.0, nan)], false).to_svg().unwrap().starts_with("<svg"));
        assert!(chart(vec![(4096.0, spread(0.0))], true).to_svg().unwrap().starts_with("<svg"));
    }

    #[test]
    fn numbers_are_written_as_people_read_them() {
        let written = [0.0, 0.25, 1.0, 12.5, 250.0, 9999.0, 45_000.0, 2.5e6].map(number);
        assert_eq!(written, ["0", "0.25", "1", "12.5", "250", "9999", "45 k", "2.5 M"]);
        assert_eq!(
            [512.0, 4096.0, 1_572_864.0, 4294967296.0].map(bytes),
            ["512 B", "4 KiB", "1.5 MiB", "4 GiB"]
        );
    }
}
