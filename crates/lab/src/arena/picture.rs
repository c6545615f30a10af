//! The score as one picture: a line for each workload, on it a dot for each store, as far right as its rate in measure of the
//! fastest. So the eye finds in every line who leads and by how much.

use super::score::{Figure, OURS, Score};
use maud::{Markup, html};

/// Told apart also by those who do not see all colours (Okabe and Ito); ours is the first.
const COLOURS: [&str; 8] =
    ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#3c3c3c", "#8a8a00"];

/// Shares of the fastest rate, from the left edge to the right one.
const LEAST: f64 = 0.01;

const LEFT: f64 = 340.0;
const WIDTH: f64 = 530.0;
const TOP: f64 = 70.0;
const STEP: f64 = 24.0;

/// The picture as SVG.
pub(crate) fn picture(score: &Score) -> String {
    drawing(score).into_string()
}

/// The colour of a store: ours is always the same.
pub(crate) fn colour(score: &Score, engine: &str) -> &'static str {
    if engine == OURS {
        return COLOURS[0];
    }
    let peers = score.plan.engines.iter().filter(|name| *name != OURS);
    let at = peers.take_while(|name| *name != engine).count();
    COLOURS[1 + at % (COLOURS.len() - 1)]
}

fn place(share: f64) -> f64 {
    let share = share.clamp(LEAST, 1.0);
    LEFT + WIDTH * (share.ln() - LEAST.ln()) / -LEAST.ln()
}

fn drawing(score: &Score) -> Markup {
    let height = TOP + STEP * score.plan.workloads.len() as f64 + 20.0;
    let bottom = height - 20.0;
    let number = |value: f64| format!("{value:.1}");
    html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 900 " (number(height)) }
            font-family="sans-serif" font-size="13" {
            rect width="900" height=(number(height)) fill="#fff" {}
            @for (at, engine) in score.plan.engines.iter().enumerate() {
                @let x = 20.0 + 110.0 * at as f64;
                circle cx=(number(x)) cy="18" r="5" fill=(colour(score, engine)) {}
                text x=(number(x + 10.0)) y="22" fill="#282828" { (engine) }
            }
            @for (share, name) in [(0.01, "1 %"), (0.03, "3 %"), (0.1, "10 %"), (0.3, "30 %"), (1.0, "fastest")] {
                @let x = number(place(share));
                line x1=(x) x2=(x) y1=(number(TOP - 14.0)) y2=(number(bottom)) stroke="#e1e1e1" {}
                text x=(x) y=(number(TOP - 20.0)) text-anchor="middle" fill="#626b75" { (name) }
            }
            @for (at, workload) in score.plan.workloads.iter().enumerate() {
                @let y = TOP + STEP * at as f64;
                @let rates = score.plan.engines.iter().map(|engine| {
                    let rate = score.cell(Figure::Rate, engine, *workload).figure.map(|[median, ..]| median);
                    (engine, rate)
                }).collect::<Vec<_>>();
                @let best = rates.iter().filter_map(|(_, rate)| *rate).fold(0.0, f64::max);
                text x=(number(LEFT - 12.0)) y=(number(y + 4.0)) text-anchor="end" fill="#282828" { (workload.title()) }
                line x1=(number(LEFT)) x2=(number(LEFT + WIDTH)) y1=(number(y)) y2=(number(y)) stroke="#eee" {}
                // Ours last, so that nobody lies on it.
                @for (engine, rate) in rates.iter().rev() {
                    @if let Some(rate) = rate.filter(|_| best > 0.0) {
                        circle cx=(number(place(rate / best))) cy=(number(y)) r="5"
                            fill=(colour(score, engine)) fill-opacity="0.85" {
                            title { (engine) ": " (format!("{:.0}", rate)) " " (workload.unit()) " a second" }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::score::tests::score;

    #[test]
    fn every_store_that_ran_has_its_dot_and_the_fastest_is_at_the_right() {
        let svg = picture(&score());
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"));
        assert_eq!(svg.matches("<circle").count(), 3 + 5, "a legend of three, and five that ran");
        assert!(svg.contains(&format!("cx=\"{:.1}\"", LEFT + WIDTH)));
        assert!((place(0.1) - (LEFT + WIDTH / 2.0)).abs() < 1e-9 && place(0.0) == LEFT);
        assert!(svg.contains("uniform update") && svg.contains("fast: 400 updates a second"));
    }

    #[test]
    fn each_store_has_a_colour_of_its_own() {
        let score = score();
        let colours = ["sapwood", "fast", "slow"].map(|engine| colour(&score, engine));
        assert_eq!(colours, [COLOURS[0], COLOURS[1], COLOURS[2]]);
    }
}
