//! Draws a device profile: random requests a second by depth, and latency by request size.

use crate::{Error, Latency, Profile, Rate, Result};
use plotters::coord::Shift;
use plotters::prelude::*;

const SIZE: (u32, u32) = (1000, 440);

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

    fn draw_rates(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<()> {
        let top =
            self.read_rate.iter().chain(&self.write_rate).map(|rate| rate.iops).fold(1.0, f64::max) * 1.05;
        let mut chart = ChartBuilder::on(area)
            .caption("Random requests a second by depth", ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d((1f64..128f64).log_scale(), 0f64..top)
            .map_err(cannot)?;
        chart.configure_mesh().x_desc("requests at a time").x_labels(8).draw().map_err(cannot)?;
        let lines = [(&self.read_rate, "read", 0), (&self.write_rate, "write", 3)];
        for (rates, what, colour) in lines {
            for (index, bytes) in sizes(rates).into_iter().enumerate() {
                let style = Palette99::pick(colour * 3 + index).stroke_width(2);
                let points = rates
                    .iter()
                    .filter(|rate| rate.bytes == bytes)
                    .map(|rate| (rate.depth as f64, rate.iops));
                chart
                    .draw_series(LineSeries::new(points, style).point_size(3))
                    .map_err(cannot)?
                    .label(format!("{what} {} KiB", bytes >> 10))
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
            }
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()
            .map_err(cannot)
    }

    fn draw_latencies(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<()> {
        let all = self.read_latency.iter().chain(&self.write_latency);
        let top = all.map(|latency| latency.p99_us).fold(1.0, f64::max) * 1.05;
        let mut chart = ChartBuilder::on(area)
            .caption("Latency of one request by size, microseconds", ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d((2f64..256f64).log_scale(), 0f64..top)
            .map_err(cannot)?;
        chart.configure_mesh().x_desc("KiB").x_labels(8).draw().map_err(cannot)?;
        type Figure = fn(&Latency) -> f64;
        let figures: [(&str, Figure); 2] = [("median", |l| l.p50_us), ("99 %", |l| l.p99_us)];
        for (latencies, what, colour) in [(&self.read_latency, "read", 0), (&self.write_latency, "write", 2)]
        {
            for (index, (name, figure)) in figures.iter().enumerate() {
                let style = Palette99::pick(colour + index).stroke_width(2);
                let points = latencies.iter().map(|latency| ((latency.bytes >> 10) as f64, figure(latency)));
                chart
                    .draw_series(LineSeries::new(points, style).point_size(3))
                    .map_err(cannot)?
                    .label(format!("{what}, {name}"))
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
            }
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()
            .map_err(cannot)
    }
}

fn sizes(rates: &[Rate]) -> Vec<usize> {
    let mut sizes: Vec<_> = rates.iter().map(|rate| rate.bytes).collect();
    sizes.dedup();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}
