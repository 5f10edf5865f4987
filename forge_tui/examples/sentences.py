"""English sentences for the language examples. Written for this project; lengths vary like real queries do."""

from __future__ import annotations

SENTENCES: tuple[str, ...] = (
    "The ferry leaves the northern pier at seven, unless the wind turns.",
    "How do I reset the password of an account whose phone number has changed?",
    "A warm current keeps the harbour free of ice through most of the winter.",
    "Please send the signed contract to the office in Rotterdam before Friday noon.",
    "The committee could not agree on a budget.",
    "Which bakery near the station opens before six in the morning?",
    "She repaired the clock with a spring taken from an old music box.",
    "Rainfall in the valley has doubled since the dam was built, and farmers have moved their vineyards uphill.",
    "The museum lends instruments to students who promise to play them every day.",
    "Our train stood for forty minutes in front of a red signal.",
    "Can the warranty be transferred when the machine is sold to another company?",
    "Two of the samples were contaminated, so the measurement was repeated with fresh reagents.",
    "The letter was never opened.",
    "Bees find their way home by the position of the sun, even when clouds hide it.",
    "Prices for copper fell again after the mine reported a larger harvest than expected.",
    "He learned the language by listening to the radio while he painted houses.",
)
PROMPT = (
    "Explain to a new colleague why the ferry between the two islands stops running when the wind turns to the north. "
    "Mention the shallow water in front of the pier, the long swell that follows a storm, and the narrow entrance of the "
    "harbour, which can only be passed at high tide. Write three short paragraphs, use plain words, and end with advice "
    "on what to do with passengers who have to catch the evening train on the other side. "
)
