//! Draws a device profile: random requests a second by depth, and latency by request size.

use crate::{Latency, Profile, Rate};
use plotters::coord::Shift;
use plotters::coord::combinators::LogCoord;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use psync::{Error, Result};
use std::ops::Range;

const SIZE: (u32, u32) = (1000, 440);

type Area<'s> = DrawingArea<SVGBackend<'s>, Shift>;
type Chart<'a, 's> = ChartContext<'a, SVGBackend<'s>, Cartesian2d<LogCoord<f64>, RangedCoordf64>>;

/// A chart from zero up to `top`.
fn chart<'a, 's>(
    area: &'a Area<'s>,
    caption: &str,
    (x, meaning): (Range<f64>, &str),
    top: f64,
) -> Result<Chart<'a, 's>> {
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(x.log_scale(), 0f64..top)
        .map_err(cannot)?;
    chart.configure_mesh().x_desc(meaning).x_labels(8).draw().map_err(cannot)?;
    Ok(chart)
}

fn draw_line(
    chart: &mut Chart<'_, '_>,
    (name, colour): (String, usize),
    points: impl Iterator<Item = (f64, f64)>,
) -> Result<()> {
    let style = Palette99::pick(colour).stroke_width(2);
    chart
        .draw_series(LineSeries::new(points, style).point_size(3))
        .map_err(cannot)?
        .label(name)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    Ok(())
}

fn draw_names<'a, 's: 'a>(chart: &mut Chart<'a, 's>) -> Result<()> {
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(cannot)
}

fn cannot(error: impl std::fmt::Display) -> Error {
    Error::Invalid(format!("the profile cannot be drawn: {error}"))
}

impl Profile {
    /// The profile as an SVG picture.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is nothing to draw.
    pub fn to_svg(&self) -> Result<String> {
        let mut svg = String::new();
        {
            let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            root.fill(&WHITE).map_err(cannot)?;
            let (left, right) = root.split_horizontally(SIZE.0 / 2);
            self.draw_rates(&left)?;
            self.draw_latencies(&right)?;
            root.present().map_err(cannot)?;
        }
        Ok(svg)
    }

    fn draw_rates(&self, area: &Area<'_>) -> Result<()> {
        let top =
            self.read_rate.iter().chain(&self.write_rate).map(|rate| rate.iops).fold(1.0, f64::max) * 1.05;
        let depths = (1f64..128f64, "requests at a time");
        let mut chart = chart(area, "Random requests a second by depth", depths, top)?;
        let lines = [(&self.read_rate, "read", 0), (&self.write_rate, "write", 3)];
        for (rates, what, colour) in lines {
            for (index, bytes) in sizes(rates).into_iter().enumerate() {
                let line = (format!("{what} {} KiB", bytes >> 10), colour * 3 + index);
                let of_size = rates.iter().filter(|rate| rate.bytes == bytes);
                draw_line(&mut chart, line, of_size.map(|rate| (rate.depth as f64, rate.iops)))?;
            }
        }
        draw_names(&mut chart)
    }

    fn draw_latencies(&self, area: &Area<'_>) -> Result<()> {
        let all = self.read_latency.iter().chain(&self.write_latency);
        let top = all.map(|latency| latency.p99_us).fold(1.0, f64::max) * 1.05;
        let sizes = (2f64..256f64, "KiB");
        let mut chart = chart(area, "Latency of one request by size, microseconds", sizes, top)?;
        type Figure = fn(&Latency) -> f64;
        let figures: [(&str, Figure); 2] = [("median", |l| l.p50_us), ("99 %", |l| l.p99_us)];
        for (latencies, what, colour) in [(&self.read_latency, "read", 0), (&self.write_latency, "write", 2)]
        {
            for (index, (name, figure)) in figures.iter().enumerate() {
                let points = latencies.iter().map(|latency| ((latency.bytes >> 10) as f64, figure(latency)));
                draw_line(&mut chart, (format!("{what}, {name}"), colour + index), points)?;
            }
        }
        draw_names(&mut chart)
    }
}

fn sizes(rates: &[Rate]) -> Vec<usize> {
    let mut sizes: Vec<_> = rates.iter().map(|rate| rate.bytes).collect();
    sizes.dedup();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;
    use psync::Backend;

    fn profile(rates: Vec<Rate>, latencies: Vec<Latency>) -> Profile {
        Profile {
            format: 1,
            directory: "somewhere".into(),
            measured_at: 0,
            backend: Backend::Threads,
            direct: true,
            alignment: 512,
            read_latency: latencies.clone(),
            write_latency: latencies,
            read_rate: rates.clone(),
            write_rate: rates,
            read_bandwidth: 1e9,
            write_bandwidth: 1e9,
            sync_latency: Latency { bytes: 4096, mean_us: 1.0, p50_us: 1.0, p99_us: 1.0 },
        }
    }

    #[test]
    fn every_measured_line_is_drawn_and_named() {
        let rates = [(4096, 1), (4096, 2), (8192, 1), (8192, 2)].map(|(bytes, depth)| Rate {
            bytes,
            depth,
            iops: 1000.0 * depth as f64,
        });
        let latencies =
            [2048, 4096].map(|bytes| Latency { bytes, mean_us: 50.0, p50_us: 49.0, p99_us: 90.0 });
        let svg = profile(rates.into(), latencies.into()).to_svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in ["read 4 KiB", "write 8 KiB", "read, median", "write, 99 %", "requests at a time", "KiB"]
        {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        // One a line of rates by size and direction, and one a line of latencies by figure and direction.
        assert!(svg.matches("<polyline").count() >= 8, "{svg}");
    }

    #[test]
    fn a_profile_without_figures_is_drawn_empty() {
        assert!(profile(Vec::new(), Vec::new()).to_svg().unwrap().starts_with("<svg"));
    }
}
