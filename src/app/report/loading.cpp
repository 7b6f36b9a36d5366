#include <algorithm>

#include <fmt/core.h>

#include "app/report/format.h"
#include "app/report/palette.h"
#include "app/report/sections.h"
#include "app/report/svg.h"

namespace dkfac::app {
namespace {

/// Over all epochs of a group's runs.
struct Sum {
  LoadingRecord all;
  double epochs = 0;
};

Sum sum_of(const RunGroup& group) {
  Sum sum;
  for (const RunResult& run : group.runs) {
    double bad = 0;
    for (const EpochRecord& epoch : run.epochs) {
      if (!epoch.loading) continue;
      const LoadingRecord& one = *epoch.loading;
      ++sum.epochs;
      sum.all.wait_share += one.wait_share;
      sum.all.images += one.images;
      sum.all.read_s += one.read_s;
      sum.all.decode_s += one.decode_s;
      sum.all.resize_s += one.resize_s;
      sum.all.normalise_s += one.normalise_s;
      bad = std::max(bad, one.bad);
    }
    sum.all.bad += bad;
  }
  return sum;
}

std::string row(const RunGroup& group, std::size_t style, const Sum& sum) {
  const LoadingRecord& all = sum.all;
  std::string out = fmt::format("<tr><th scope=\"row\">{}{}</th><td>{}</td>", swatch(style),
                                escape(group.name), fixed(100 * all.wait_share / sum.epochs, 1));
  const double seconds = all.read_s + all.decode_s + all.resize_s + all.normalise_s;
  for (const double stage : {seconds, all.read_s, all.decode_s, all.resize_s, all.normalise_s}) {
    const auto rate = all.rate(stage);
    out += "<td>" + (rate ? three_digits(*rate) : "-") + "</td>";
  }
  return out + fmt::format("<td>{:.0f}</td></tr>\n", all.bad);
}

std::string bad_list(std::span<const RunGroup> groups) {
  std::string out;
  for (const RunGroup& group : groups)
    for (const RunResult& run : group.runs)
      for (const std::string& name : run.bad_photos)
        out += fmt::format("<li><b>{}</b>, seed {}: <code>{}</code></li>\n", escape(group.name),
                           run.seed, escape(name));
  return out.empty()
             ? out
             : "<details><summary>Damaged files</summary><ul>\n" + out + "</ul></details>\n";
}

}  // namespace

std::string loading_section(std::span<const RunGroup> groups) {
  std::string rows;
  for (std::size_t i = 0; i < groups.size(); ++i)
    if (const Sum sum = sum_of(groups[i]); sum.epochs > 0) rows += row(groups[i], i, sum);
  if (rows.empty()) return {};
  return "<div class=\"wide\"><table><thead><tr><th scope=\"col\">configuration</th>"
         "<th scope=\"col\">waited for, %</th><th scope=\"col\">images/s a thread</th>"
         "<th scope=\"col\">read</th><th scope=\"col\">decode</th><th scope=\"col\">resize</th>"
         "<th scope=\"col\">normalise</th><th scope=\"col\">damaged</th></tr></thead>\n<tbody>\n" +
         rows +
         "</tbody></table></div>\n<p class=\"note\">Of the training time, the share that ranks "
         "waited for images; images per second of one thread, in all and in each stage alone; "
         "damaged files that ranks have met.</p>\n" +
         bad_list(groups);
}

}  // namespace dkfac::app
