/// One key or several, for which a request asks at once: all or none.
///
/// In a cluster all must have one hash slot.
pub trait IntoKeys {
    /// The keys, in their order.
    fn into_keys(self) -> Vec<String>;
}

impl IntoKeys for &str {
    fn into_keys(self) -> Vec<String> {
        vec![self.to_owned()]
    }
}

impl IntoKeys for String {
    fn into_keys(self) -> Vec<String> {
        vec![self]
    }
}

impl IntoKeys for &String {
    fn into_keys(self) -> Vec<String> {
        vec![self.clone()]
    }
}

impl<T: Into<String>> IntoKeys for Vec<T> {
    fn into_keys(self) -> Vec<String> {
        self.into_iter().map(T::into).collect()
    }
}

impl<T: Into<String>, const N: usize> IntoKeys for [T; N] {
    fn into_keys(self) -> Vec<String> {
        self.into_iter().map(T::into).collect()
    }
}

impl<T: Into<String> + Clone> IntoKeys for &[T] {
    fn into_keys(self) -> Vec<String> {
        self.iter().cloned().map(T::into).collect()
    }
}
