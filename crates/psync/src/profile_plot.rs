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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backend;

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
