#include "app/report/palette.h"

namespace dkfac::app {

std::string page_css() {
  return R"(:root{--paper:#ffffff;--ink:#1c2024;--soft:#5b636d;--line:#dfe3e8;--card:#f6f7f9;
--best:#e3f1ea;--best-ink:#0b5d3f;--bad:#fdecea;--bad-ink:#a3261c}
@media screen and (prefers-color-scheme:dark){:root{--paper:#16191d;--ink:#eceef1;--soft:#a3abb5;
--line:#333941;--card:#1f2329;--best:#173a2c;--best-ink:#86dfb6;--bad:#43201d;--bad-ink:#ffb4aa}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,-apple-system,
"Segoe UI",Roboto,"DejaVu Sans",Helvetica,Arial,sans-serif;-webkit-text-size-adjust:100%}
main{max-width:1180px;margin:0 auto;padding:32px 24px 48px}
h1{font-size:28px;line-height:1.2;margin:0 0 4px;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{font-size:18px;margin:36px 0 10px}
h3{font-size:12.5px;font-weight:600;color:var(--soft);margin:0}
p{margin:0 0 10px}
code,pre{font:12.5px/1.5 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre{background:var(--card);border-radius:8px;padding:12px 14px;overflow-x:auto;margin:8px 0}
.caption{color:var(--soft)}
.lead{font-size:16.5px;max-width:62em;margin:14px 0 18px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(230px,1fr));gap:12px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px}
.card p{margin:0}
.winner{font-size:19px;font-weight:650;line-height:1.35;overflow-wrap:anywhere}
.who{display:inline-flex;align-items:center;gap:8px;margin-right:10px}
.value{font-variant-numeric:tabular-nums;font-size:15.5px}
.next{color:var(--soft);font-size:13px;line-height:1.4;margin-top:4px!important}
.caveats{margin:14px 0 0;padding-left:20px;color:var(--soft)}
.failed{list-style:none;margin:0;padding:0}
.failed li{background:var(--bad);color:var(--bad-ink);border-radius:8px;padding:8px 12px;
margin-bottom:6px;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:14px}
th,td{text-align:right;padding:7px 10px;border-bottom:1px solid var(--line);vertical-align:top}
th:first-child{text-align:left}
thead th{font-weight:600;color:var(--soft);font-size:12.5px;line-height:1.3;vertical-align:bottom}
tbody th{font-weight:600;min-width:13em;overflow-wrap:anywhere}
td{white-space:nowrap}
.main td{white-space:normal}
.whole{white-space:nowrap}
td.best{background:var(--best);color:var(--best-ink);font-weight:650}
.settings th,.settings td{text-align:left;white-space:normal;padding:3px 10px}
.wide{overflow-x:auto;margin-bottom:10px}
.note{color:var(--soft);font-size:13px;margin-top:8px}
.legend{display:flex;flex-wrap:wrap;gap:4px 22px;margin:4px 0 10px;font-size:14px}
.legend span{display:inline-flex;align-items:center;gap:8px}
.legend i{width:13px;height:13px;border-radius:3px;display:inline-block}
.swatch{flex:none;margin-right:2px}
tbody th .swatch,.name .swatch{margin-right:9px;vertical-align:middle}
.plots{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:22px 26px}
figure{margin:0}
.plots svg{display:block;width:100%;height:auto}
.bars{display:grid;grid-template-columns:max-content minmax(0,1fr) max-content;gap:7px 14px;
align-items:center;margin-bottom:12px}
.name{font-weight:600;max-width:14em;overflow-wrap:anywhere;display:flex;align-items:center}
.bar{display:flex;height:26px}
.bar span{display:block;overflow:hidden;text-align:center;line-height:26px;font-size:12px;
border-right:1px solid var(--paper)}
.bar b{font-weight:600;color:#fff;background:rgba(0,0,0,.42);border-radius:4px;padding:1px 5px}
.sum{font-variant-numeric:tabular-nums;text-align:right}
details{border-top:1px solid var(--line);padding:8px 0}
summary{cursor:pointer;font-weight:600}
footer{color:var(--soft);font-size:13px;margin-top:32px}
@media (max-width:820px){main{padding:20px 14px 32px}.plots{grid-template-columns:minmax(0,1fr)}
.cards{grid-template-columns:repeat(2,minmax(0,1fr))}
.main,.main tbody,.main tr,.main th,.main td{display:block}.main thead{display:none}
.main tr{border:1px solid var(--line);border-radius:10px;margin-bottom:10px;overflow:hidden}
tbody th{min-width:11em}.wide th:first-child{position:sticky;left:0;background:var(--paper)}
.main tbody th:first-child{min-width:0;position:static;background:var(--card)}
.main td{display:flex;justify-content:space-between;gap:16px;padding:5px 10px}
.main td::before{content:attr(data-head);color:var(--soft);font-weight:400;
text-align:left}
.main tr td:last-child{border-bottom:0}
.bars{grid-template-columns:minmax(0,1fr) max-content;gap:2px 12px}
.bars .name{grid-column:1/-1;max-width:none;margin-top:6px}}
@media (max-width:520px){.cards{grid-template-columns:minmax(0,1fr)}
.plots .pic text{font-size:17px}.plots .pic .title{font-size:20px}}
@media print{main{max-width:none;padding:0}body{font-size:11pt}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
figure,.card,tr,.bars{break-inside:avoid}h2{break-after:avoid}}
)";
}

}  // namespace dkfac::app
