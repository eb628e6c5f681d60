//! Finding bytes in bytes, in time that grows with both and not with their product
//! (Knuth, Morris and Pratt), since whoever made a bundle chose both.

/// Whether `sought` is somewhere in `text`. Memory is that of an index for each
/// byte that is sought.
pub(super) fn contains(text: &[u8], sought: &[u8]) -> bool {
    // For each beginning of what is sought: how long the longest shorter beginning
    // is with which it ends too.
    let mut borders = vec![0; sought.len()];
    let mut num_matched = 0;
    for at in 1..sought.len() {
        num_matched = step(sought, &borders, num_matched, sought[at]);
        borders[at] = num_matched;
    }
    let mut num_matched = 0;
    for byte in text {
        if num_matched == sought.len() {
            break;
        }
        num_matched = step(sought, &borders, num_matched, *byte);
    }
    num_matched == sought.len()
}

/// How much of what is sought the bytes so far end with, after one more byte.
/// `num_matched` is less than the length of what is sought.
fn step(sought: &[u8], borders: &[usize], mut num_matched: usize, byte: u8) -> usize {
    while num_matched > 0 && sought[num_matched] != byte {
        num_matched = borders[num_matched - 1];
    }
    num_matched + usize::from(sought[num_matched] == byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found_is_what_a_comparison_at_every_place_finds() {
        // Every text of up to nine letters of two, and every one of up to four in it.
        let words = |most: u32| {
            (0..=most).flat_map(|length| {
                (0..1u32 << length).map(move |bits| {
                    (0..length).map(|at| b'a' + u8::from((bits >> at) & 1 == 1)).collect::<Vec<u8>>()
                })
            })
        };
        let mut num_found = 0;
        for text in words(9) {
            for sought in words(4).filter(|sought| !sought.is_empty()) {
                let is_there = text.windows(sought.len()).any(|window| window == sought);
                assert_eq!(contains(&text, &sought), is_there, "{sought:?} in {text:?}");
                num_found += usize::from(is_there);
            }
        }
        assert!(num_found > 1000, "{num_found}");
        assert!(contains(b"", b"") && contains(b"a", b""));
    }

    #[test]
    fn a_text_that_nearly_matches_everywhere_is_searched_in_one_pass() {
        // Compared at every place these would be 2^40 bytes.
        let text = vec![b'a'; 8 << 20];
        let mut sought = vec![b'a'; 1 << 17];
        sought[0] = b'b';
        assert!(!contains(&text, &sought));
        sought[0] = b'a';
        sought[(1 << 17) - 1] = b'b';
        assert!(!contains(&text, &sought));
    }
}
