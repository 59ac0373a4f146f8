//! Whether a cost grows: a straight line through measurements.

use serde_json::json;

/// A straight line `intercept + slope x` by least squares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// Rise for each unit of x.
    pub slope: f64,
    /// Its standard error.
    pub slope_error: f64,
    /// The value at x = 0.
    pub intercept: f64,
}

/// The line through `points`; at least three, of which two have different x.
pub fn line(points: &[(f64, f64)]) -> Line {
    let count = points.len() as f64;
    let mean = |value: fn(&(f64, f64)) -> f64| points.iter().map(value).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let slope = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>() / spread;
    let intercept = mean_y - slope * mean_x;
    let residual: f64 = points.iter().map(|(x, y)| (y - intercept - slope * x).powi(2)).sum();
    Line { slope, slope_error: (residual / (count - 2.0) / spread).sqrt(), intercept }
}

/// Fits a line through (x, seconds) and prints it as JSON: nanoseconds, the slope for each `per` of x.
pub fn report(benchmark: &str, per: f64, points: &[(f64, f64)]) {
    let Line { slope, slope_error, intercept } = line(points);
    let line = json!({
        "benchmark": benchmark,
        "points": points.len(),
        "intercept_ns": intercept * 1e9,
        "per": per,
        "slope_ns": slope * per * 1e9,
        "slope_error_ns": slope_error * per * 1e9,
    });
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_and_its_error() {
        let exact = line(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]);
        assert_eq!(exact, Line { slope: 2.0, slope_error: 0.0, intercept: 1.0 });
        // By hand: slope 1.5, intercept 1/3 and residuals 1/6 -1/3 1/6 around it.
        let fitted = line(&[(0.0, 0.5), (1.0, 1.5), (2.0, 3.5)]);
        assert!((fitted.slope - 1.5).abs() < 1e-12 && (fitted.intercept - 1.0 / 3.0).abs() < 1e-12);
        assert!((fitted.slope_error - (1.0f64 / 6.0 / 2.0).sqrt()).abs() < 1e-12);
    }
}
