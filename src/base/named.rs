//! Enums whose variants have names for logs, metrics and the API. Each variant is written once, with its name.

/// Defines an enum with `ALL`, its variants in their order, and with `name`.
macro_rules! named {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $named:ident {
            $($(#[$doc:meta])* $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$attribute])*
        $visibility enum $named {
            $($(#[$doc])* $variant,)+
        }

        impl $named {
            /// In their order.
            $visibility const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            $visibility fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

pub(crate) use named;
