//! Horizontal bars as SVG text. Every benchmark has a scale of its own: from nanoseconds to seconds,
//! one scale would hide most of them.

use std::fmt::Write;

use super::{Bar, Group};

const WIDTH: f64 = 960.0;
const LABELS: f64 = 310.0;
const LONGEST: f64 = 420.0;
const ROW: f64 = 20.0;
const MARGIN: f64 = 16.0;

/// Whose bar it is, by how the side's name begins, and its colour.
const OWNERS: [(&str, &str); 3] = [("ours", "#2563eb"), ("PyTorch", "#ea580c"), ("", "#94a3b8")];
const LEGEND: [&str; 3] = ["atomr-cuda", "PyTorch", "reference"];

/// The picture of `groups`.
pub(super) fn draw(title: &str, groups: &[Group]) -> String {
    let rows: usize = groups.iter().map(|group| group.bars.len() + 2).sum();
    let height = 2.0 * MARGIN + 3.0 * ROW + rows as f64 * ROW;
    let mut picture = Picture { text: String::new(), y: MARGIN };
    picture.row(|picture| picture.label(MARGIN, "title", title));
    picture.row(Picture::legend);
    picture.y += ROW / 2.0;
    for group in groups {
        picture.y += ROW / 2.0;
        picture.row(|picture| picture.label(MARGIN, "name", &group.name));
        let longest = group.bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
        for bar in &group.bars {
            picture.row(|picture| picture.bar(bar, longest, group.unit.as_deref()));
        }
        picture.y += ROW / 2.0;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">\n\
         <style>text {{ font: 13px sans-serif; fill: #0f172a }} .title {{ font-size: 16px; font-weight: bold }} \
         .name {{ font-weight: bold }} .side {{ fill: #475569 }}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{}</svg>\n",
        picture.text
    )
}

struct Picture {
    text: String,
    /// The top of the next row.
    y: f64,
}

impl Picture {
    fn row(&mut self, draw: impl FnOnce(&mut Self)) {
        draw(self);
        self.y += ROW;
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        self.text.write_fmt(element).expect("a string takes everything");
        self.text.push('\n');
    }

    fn label(&mut self, x: f64, class: &str, text: &str) {
        let (y, text) = (self.y + ROW * 0.7, escaped(text));
        self.push(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>"));
    }

    fn block(&mut self, x: f64, width: f64, colour: &str) {
        let (y, height) = (self.y + 3.0, ROW - 6.0);
        self.push(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
        ));
    }

    fn legend(&mut self) {
        for (at, ((_, colour), text)) in OWNERS.iter().zip(LEGEND).enumerate() {
            let x = MARGIN + 130.0 * at as f64;
            self.block(x, ROW - 6.0, colour);
            self.label(x + ROW, "side", text);
        }
    }

    fn bar(&mut self, bar: &Bar, longest: f64, unit: Option<&str>) {
        let colour = OWNERS.iter().find(|(start, _)| bar.side.starts_with(start)).map_or("#000000", |owner| owner.1);
        let width = (bar.value / longest * LONGEST).max(1.0);
        self.label(MARGIN * 2.0, "side", &bar.side);
        self.block(LABELS, width, colour);
        let text = match (unit, bar.p99) {
            (Some(unit), _) => format!("{} {unit}", figure(bar.value)),
            (None, Some(p99)) => format!("{} us, p99 {}", figure(bar.value), figure(p99)),
            (None, None) => format!("{} us", figure(bar.value)),
        };
        self.label(LABELS + width + 6.0, "side", &text);
    }
}

/// Three digits, or all of those before the point.
fn figure(value: f64) -> String {
    let decimals = match value {
        ..1.0 => 3,
        ..10.0 => 2,
        ..100.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let texts = [0.1891, 1.403, 12.96, 370.5, 1298469.5].map(figure);
        assert_eq!(texts, ["0.189", "1.40", "13.0", "370", "1298470"]);
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar = |side: &str, value| Bar { side: side.into(), value, p99: None };
        let bars = vec![bar("ours", 1.0), bar("raw", 4.0), bar("PyTorch", 2.0)];
        let picture = draw("Rates", &[Group { name: "test".into(), unit: Some("GB/s".into()), bars }]);
        for (width, colour) in [("105.0", "#2563eb"), ("420.0", "#94a3b8"), ("210.0", "#ea580c")] {
            let rest = format!("width=\"{width}\" height=\"14.0\" fill=\"{colour}\"");
            assert!(picture.contains(&rest), "{rest} is not in {picture}");
        }
    }
}
