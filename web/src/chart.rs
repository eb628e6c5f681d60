//! Charts as SVG on the server, for readers without scripts; with scripts on,
//! uPlot takes their place. No inline style: the policy forbids it.

use std::fmt::Write;

use crate::series::Points;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 200.0;
const MARGIN: f64 = 44.0;

/// Draws every curve into one SVG with labelled ends of both axes; empty text
/// when there is nothing to draw.
pub(crate) fn svg(title: &str, curves: &[&Points]) -> String {
    let steps = || curves.iter().flat_map(|points| points.steps.iter().copied());
    let values = || curves.iter().flat_map(|points| points.values.iter().copied());
    let (Some(first), Some(last)) = (steps().min(), steps().max()) else { return String::new() };
    let low = values().fold(f64::INFINITY, f64::min);
    let high = values().fold(f64::NEG_INFINITY, f64::max);
    let x =
        |step: u64| MARGIN + (WIDTH - MARGIN - 8.0) * ratio(to_float(step - first), to_float(last - first));
    let y = |value: f64| (HEIGHT - 24.0) - (HEIGHT - 36.0) * ratio(value - low, high - low);
    let mut text = format!(
        "<svg class=\"plot\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title} by step\">\
         <title>{title} by step</title>"
    );
    for (number, points) in curves.iter().enumerate() {
        let mut path = String::new();
        for (step, value) in points.steps.iter().zip(&points.values) {
            let command = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", x(*step), y(*value));
        }
        let _ = write!(text, "<path class=\"curve curve-{}\" d=\"{path}\"/>", number % 4);
        for step in points.not_finite_steps.iter().filter(|step| (first..=last).contains(step)) {
            let _ = write!(text, "<text class=\"nan\" x=\"{:.1}\" y=\"12\">NaN {step}</text>", x(*step));
        }
    }
    let bottom = HEIGHT - 6.0;
    let _ = write!(
        text,
        "<text class=\"tick\" x=\"2\" y=\"{:.1}\">{low:.4}</text><text class=\"tick\" x=\"2\" y=\"16\">{high:.4}</text>\
         <text class=\"tick\" x=\"{MARGIN}\" y=\"{bottom}\">step {first}</text>\
         <text class=\"tick end\" x=\"{:.1}\" y=\"{bottom}\">{last}</text></svg>",
        HEIGHT - 24.0,
        WIDTH - 8.0,
    );
    text
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.5 }
}

#[allow(clippy::cast_precision_loss, reason = "a pixel position")]
fn to_float(value: u64) -> f64 {
    value as f64
}
