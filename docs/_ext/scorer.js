// How the search of the site ranks: as Sphinx does by itself, but for two things. Pages that solve a
// problem come before others that have the same words, and pages about the project come last, because
// somebody who searches wants to do something. LAST is made of docs/searches.toml.
var Scorer = {
  last: LAST,
  score: ([page, , , , score]) => {
    if (Scorer.last.includes(page)) return score - 1000;
    if (page === "cookbook" || page === "troubleshooting") return score + 2;
    return page.startsWith("guides/") ? score + 1 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
