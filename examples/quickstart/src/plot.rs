//! The picture.

use std::path::Path;

use anyhow::Context;
use plotters::prelude::*;

/// Ten colours that can be told apart.
const COLOURS: [RGBColor; 10] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
    RGBColor(188, 189, 34),
    RGBColor(23, 190, 207),
];

/// Draws one point an image, at its first two components and in its digit's colour, as SVG.
///
/// # Errors
/// When the file cannot be written.
pub fn draw(path: &Path, scores: &[[f64; 2]], labels: &[u8], explained: &[f64]) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    let axis = |i: usize| {
        let share = 100.0 * explained.get(i).copied().unwrap_or_default();
        format!("component {} ({share:.1}% of the variance)", i + 1)
    };
    let reach = scores.iter().flatten().fold(1.0f64, |reach, value| reach.max(value.abs())) * 1.05;

    let canvas = SVGBackend::new(path, (900, 760)).into_drawing_area();
    canvas.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&canvas)
        .caption("Handwritten digits, first two principal components", ("sans-serif", 22))
        .margin(16)
        .x_label_area_size(48)
        .y_label_area_size(56)
        .build_cartesian_2d(-reach..reach, -reach..reach)?;
    chart
        .configure_mesh()
        .x_desc(axis(0))
        .y_desc(axis(1))
        .axis_desc_style(("sans-serif", 16))
        .light_line_style(WHITE)
        .draw()?;
    for (digit, colour) in (0u8..).zip(COLOURS) {
        let points = scores.iter().zip(labels).filter(|(_, label)| **label == digit);
        chart
            .draw_series(points.map(|(&[x, y], _)| Circle::new((x, y), 3, colour.mix(0.7).filled())))?
            .label(digit.to_string())
            .legend(move |(x, y)| Circle::new((x + 10, y), 5, colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    canvas.present().with_context(|| format!("writing {}", path.display()))
}
