//! Lines of what a run recorded, `<kind> <step> <det>\n`, as the projection and
//! the records of a probe hash them (`docs/FORMAT.md`, "Projection").

use schemas::body::Kind;

/// Digits of the largest 64-bit number.
const MAX_DIGITS: usize = 20;

/// Writes one line in place of what `line` held.
pub(super) fn write(line: &mut Vec<u8>, kind: Kind, step: u64, det: &[u8]) {
    let name = kind.name().as_bytes();
    line.clear();
    line.reserve(name.len() + MAX_DIGITS + 3 + det.len());
    line.extend_from_slice(name);
    line.push(b' ');
    push_decimal(line, step);
    line.push(b' ');
    line.extend_from_slice(det);
    line.push(b'\n');
}

/// A line is written for every step, and the formatting machinery costs more
/// than the digits.
fn push_decimal(line: &mut Vec<u8>, number: u64) {
    let start = line.len();
    let mut rest = number;
    loop {
        let [digit, ..] = (rest % 10).to_le_bytes();
        line.push(b'0' + digit);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    line[start..].reverse();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_what_the_format_page_says() {
        let mut line = b"what was there".to_vec();
        for step in [0, 7, 10, 1_234_567_890, u64::MAX] {
            for kind in [Kind::Step, Kind::CheckpointDurablyCommitted] {
                write(&mut line, kind, step, br#"{"a":1}"#);
                let expected = format!("{} {step} {{\"a\":1}}\n", kind.name());
                assert_eq!(line, expected.as_bytes());
            }
        }
    }
}
