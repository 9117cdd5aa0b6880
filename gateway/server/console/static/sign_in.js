// Signing in; with the second factor where there is one.
import "./passphrase.js";
import { watchSecondFactor } from "./second_factor.js";

watchSecondFactor(document.getElementById("sign-in"));
