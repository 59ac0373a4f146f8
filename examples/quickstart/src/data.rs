//! The digits.

use anyhow::{Context, ensure};

/// Pixels of an image.
pub const PIXELS: usize = 64;

/// Images of 8 x 8 pixels, and the digit that each shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Digits {
    /// One image a row, row-major, values from 0 to 16.
    pub pixels: Vec<f64>,
    /// 0 to 9, one an image.
    pub labels: Vec<u8>,
}

impl Digits {
    /// The data set that comes with this example; see `data/LICENSE.md`.
    pub fn load() -> anyhow::Result<Self> {
        Self::parse(include_str!("../data/digits.csv"))
    }

    /// Reads lines of 64 pixels and a label, separated by commas.
    pub fn parse(csv: &str) -> anyhow::Result<Self> {
        let mut digits = Digits { pixels: Vec::new(), labels: Vec::new() };
        for (number, line) in csv.lines().enumerate() {
            let values: Vec<u8> = line
                .split(',')
                .map(str::parse)
                .collect::<Result<_, _>>()
                .with_context(|| format!("line {}", number + 1))?;
            ensure!(values.len() == PIXELS + 1, "line {} has {} values instead of 65", number + 1, values.len());
            digits.pixels.extend(values[..PIXELS].iter().map(|&pixel| f64::from(pixel)));
            digits.labels.push(values[PIXELS]);
        }
        ensure!(!digits.labels.is_empty(), "there is no image");
        Ok(digits)
    }

    /// Images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no image.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_image() {
        let digits = Digits::load().expect("the data set");
        assert_eq!(digits.len(), 1797);
        assert_eq!(digits.pixels.len(), 1797 * PIXELS);
        assert_eq!(digits.labels[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(digits.pixels[..8], [0.0, 0.0, 5.0, 13.0, 9.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn says_which_line_is_wrong() {
        let error = Digits::parse("1,2,3").expect_err("three values");
        assert_eq!(error.to_string(), "line 1 has 3 values instead of 65");
    }
}
